"""What a file's first bytes say it is, whatever its name says: so that each wrong file gets its own plain sentence."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from enum import Enum

from shardyard.errors import COPY_AGAIN, DamagedError
from shardyard.files import FileHandles
from shardyard.text import printable

HEAD = 1024


class Content(str, Enum):
    """Kinds of content that are told apart."""

    EMPTY = "empty"
    ZEROS = "zeros"
    SAFETENSORS = "safetensors"
    ZIP = "zip"
    PICKLE = "pickle"
    TAR = "tar"
    GGUF = "gguf"
    NPY = "npy"
    LFS = "lfs"
    HTML = "html"
    JSON = "json"
    GZIP = "gzip"
    FOREIGN = "foreign"
    """A known kind that has nothing to do with checkpoints: a program, an image, HDF5."""
    TEXT = "text"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sniff:
    """What the first bytes say."""

    content: Content
    detail: str = ""
    """The kind's name for FOREIGN, the title of a web page, a server's message, the real size behind an LFS pointer."""

    @property
    def meant_as_checkpoint(self) -> bool:
        """Whether a file with a checkpoint's name and this content deserves a report of its own."""
        return self.content not in (Content.FOREIGN, Content.TEXT, Content.UNKNOWN)


_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (b"\x7fELF", "a program (ELF)"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, which Shardyard does not read"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"%PDF", "a PDF document"),
    (b"RIFF", "a RIFF file (sound or image)"),
    (b"\xfd7zXZ\x00", "an xz-compressed file"),
    (b"BZh", "a bzip2-compressed file"),
    (b"(\xb5/\xfd", "a zstd-compressed file"),
    (b"SQLite format 3\x00", "an SQLite database"),
)
_LFS = b"version https://git-lfs.github.com/spec/"
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_TEXT_PICKLE = re.compile(rb"(?:c[A-Za-z_][\w.]*\n\w+\n|\(dp?\d*\n|\(lp?\d*\n|[IFLVSg][^\n]{0,64}\n[.ap0-9\n])")


def sniff(head: bytes, nbytes: int) -> Sniff:
    """Judge a file by its first `HEAD` bytes (or all of them, if it is shorter) and its size."""
    if nbytes == 0:
        return Sniff(Content.EMPTY)
    if not head.strip(b"\0"):
        return Sniff(Content.ZEROS)
    if head.startswith(_LFS):
        size = re.search(rb"^size (\d{1,18})\s*$", head, re.MULTILINE)
        return Sniff(Content.LFS, size.group(1).decode() if size else "")
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return Sniff(Content.ZIP)
    if head[:4] == b"GGUF":
        return Sniff(Content.GGUF)
    if head[:6] == b"\x93NUMPY":
        return Sniff(Content.NPY)
    if head[:2] == b"\x1f\x8b":
        return Sniff(Content.GZIP)
    for magic, what in _FOREIGN:
        if head.startswith(magic):
            return Sniff(Content.FOREIGN, what)
    if _looks_like_safetensors(head, nbytes):
        return Sniff(Content.SAFETENSORS)
    if head[257:262] == b"ustar":
        return Sniff(Content.TAR)
    if _PICKLE.match(head):
        return Sniff(Content.PICKLE)
    return _text(head)


def _looks_like_safetensors(head: bytes, nbytes: int) -> bool:
    length = int.from_bytes(head[:8], "little")
    return (
        len(head) > 8
        and head[8:].lstrip(b" \t\r\n")[:1] in (b"{", b"")
        and 0 < length < max(nbytes, 1 << 40)
        and b"\0" in head[:8]
    )


def _text(head: bytes) -> Sniff:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower()
    if start.startswith((b"<!doctype html", b"<html", b"<?xml", b"<head", b"<body")):
        title = re.search(rb"<title>([^<]{1,200})</title>", head, re.IGNORECASE)
        return Sniff(Content.HTML, printable(title.group(1).decode("utf-8", "replace").strip(), 80) if title else "")
    if _TEXT_PICKLE.match(head):
        return Sniff(Content.PICKLE)
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            return Sniff(Content.UNKNOWN)
        text = head[: error.start].decode("utf-8")
    if any(ord(c) < 32 and c not in "\t\r\n\f" for c in text):
        return Sniff(Content.UNKNOWN)
    if start.startswith((b"{", b"[")):
        return Sniff(Content.JSON, _message(text))
    return Sniff(Content.TEXT)


def _message(text: str) -> str:
    """What a server said in a short JSON error."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    for key in ("error", "message", "detail"):
        found = value.get(key) if isinstance(value, dict) else None
        if isinstance(found, str):
            return printable(found, 120)
    return ""


def sniff_file(handles: FileHandles, path: str) -> Sniff:
    """Judge a file; errors as `FileHandles.read`."""
    nbytes = handles.size(path)
    return sniff(handles.read(path, 0, min(HEAD, nbytes)), nbytes)


def not_a_checkpoint(path: str, seen: Sniff, wanted: str = "") -> DamagedError:
    """The error for a file that is not what its name says; `wanted` names what was expected, such as `safetensors file`."""
    name = printable(os.path.basename(path))
    content, detail = seen.content, seen.detail
    code = {Content.EMPTY: "empty-file", Content.ZEROS: "corrupt", Content.LFS: "lfs-pointer"}.get(content, "wrong-type")
    if content is Content.LFS and detail:
        text = f"a Git LFS pointer, not the file itself: the real file has {int(detail):,} bytes"
    elif content is Content.HTML:
        text = f"a web page{f' ({detail})' if detail else ''}, not a checkpoint: the download went wrong"
    elif content is Content.JSON and detail:
        text = f"a JSON message, not a checkpoint: {detail.rstrip('.')}"
    elif content is Content.FOREIGN:
        text = detail if detail.endswith(_PACKED) or "which" in detail else f"{detail}, not a checkpoint"
    elif content in _SAID:
        text = _SAID[content]
    elif wanted:
        text = f"no {wanted}"
    else:
        text = "not a checkpoint in any known format"
    remedy = "Unpack it first." if text.endswith(_PACKED) else _REMEDIES.get(content, "")
    return DamagedError(f"{name} is {text}.", code=code, path=path, remedy=remedy)


_SAID = {
    Content.EMPTY: "empty (0 bytes)",
    Content.ZEROS: "all zero bytes where its header should be: it was allocated and never written",
    Content.LFS: "a Git LFS pointer, not the file itself",
    Content.JSON: "JSON text, not a checkpoint",
    Content.GZIP: "a gzip-compressed file",
    Content.TEXT: "text, not a checkpoint",
    Content.TAR: "a tar archive without torch's members, not a checkpoint",
}
_PACKED = "-compressed file"
_REMEDIES = {
    Content.EMPTY: COPY_AGAIN,
    Content.ZEROS: COPY_AGAIN,
    Content.LFS: "Fetch it with git lfs pull.",
    Content.HTML: "Fetch it again.",
}
