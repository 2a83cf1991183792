"""One torch.save file, read without torch: the pickled graph with its tensors, and where each storage's bytes are.

Three containers: the zip of torch 1.6 and later, the legacy stream of pickles before it, and the tar of the first releases.
Nothing but the directory and the pickles is read; a storage's bytes are found by `TorchFile.layout`.
"""

from __future__ import annotations

from shardyard.files import FileHandles
from shardyard.formats.sniff import HEAD, Content, not_a_checkpoint, sniff
from shardyard.formats.torch.container import Reading, TorchFile, view_layout
from shardyard.formats.torch.legacy import BarePickle, open_legacy
from shardyard.formats.torch.tar import open_tar
from shardyard.formats.torch.tensors import StorageRef
from shardyard.formats.torch.zip import open_zip
from shardyard.formats.zip_directory import Window, read_directory, read_member

_END = 22
"""Bytes of a zip's end record without a comment."""


def open_torch(
    handles: FileHandles, path: str, window: Window | None = None, *, lenient: bool = False, raw: bool = False
) -> TorchFile:
    """Open a torch file, or the part of a file that is one (a DCP slice).

    Args:
        lenient: tensors that are malformed become `Broken` leaves, for readers that show what there is; by default they are
            an error, for readers that need every tensor.
        raw: keep every call as it stands in the pickle, for a graph that is to be written again.

    Raises:
        DamagedError: it is no torch file, or it is damaged.
    """
    if window is None:
        window = Window(path, 0, handles.size(path))
    head = handles.read(path, window.start, min(HEAD, window.nbytes))
    seen = sniff(head, window.nbytes)
    reading = Reading(lenient, raw)
    if seen.content is Content.ZIP:
        return open_zip(handles, window, reading)
    if seen.content is Content.PICKLE:
        return open_legacy(handles, window, reading)
    if seen.content is Content.TAR:
        return open_tar(handles, window, reading)
    raise not_a_checkpoint(path, seen)


def check_whole(handles: FileHandles, path: str) -> None:
    """Look whether a file that nothing is needed from was written to its end: of a zip that torch wrote, its last bytes tell.

    Raises:
        DamagedError: it is no torch file, or it was cut short.
    """
    window = Window(path, 0, handles.size(path))
    seen = sniff(handles.read(path, 0, min(HEAD, window.nbytes)), window.nbytes)
    if seen.content is not Content.ZIP:
        open_torch(handles, path, window)
    elif window.nbytes < _END or not handles.read(path, window.nbytes - _END, _END).startswith(b"PK\x05\x06"):
        read_directory(handles, window)


__all__ = ["BarePickle", "StorageRef", "TorchFile", "check_whole", "open_torch", "read_member", "view_layout"]
