"""torch.save files of every age, read and written without torch: containers, pickled graphs, storages."""
