"""Statistics: exact figures of tensors' values, and the values themselves."""
