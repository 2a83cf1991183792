"""The real training frameworks on the CPU, two processes over gloo: what they save, we read."""
