"""The safetensors format itself: header, checks, tensors."""
