"""What this process may use: memory, CPU time, processes, disk and quota, and how to behave where others work too.

Everything reads /proc, /sys and the file system; nothing here knows of checkpoints, and nothing imports numpy.
"""
