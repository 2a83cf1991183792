"""torch.distributed.checkpoint: folders of `.distcp` files with a `.metadata`, and its Hugging Face writer's shards."""
