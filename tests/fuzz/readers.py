"""The readers that take bytes from strangers, each as one function of bytes that may only end in our own errors.

    python tests/fuzz/readers.py 60              all targets, 60 seconds each, coverage-guided where atheris is installed
    python tests/fuzz/readers.py 600 pickle      one target for ten minutes

A crash, a hang or a foreign exception stops the run; the input is kept under `.fuzz/<target>/`: make it a fixture, then fix it.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "engine"), str(HERE.parents[1])]

MOST_INPUT = 1 << 16
KEPT = ROOT / ".fuzz"
_scratch = Path(tempfile.gettempdir()) / f"shardyard-fuzz-{os.getpid()}"


def pickle(data: bytes) -> None:
    """The inert unpickler, and writing again what it read."""
    from shardyard.errors import ShardyardError
    from shardyard.formats import pickles
    from shardyard.formats.torch.names import names_of
    from shardyard.formats.torch.tensors import LENIENT_REBUILDS, lenient_storage_of

    with contextlib.suppress(ShardyardError):
        names_of(pickles.load(data, collapse=LENIENT_REBUILDS, persistent=lenient_storage_of).root)


def torch_zip(data: bytes) -> None:
    """A torch file, from its zip directory to its tensors."""
    _open(data, "model.pt")


def safetensors(data: bytes) -> None:
    """A safetensors file."""
    _open(data, "model.safetensors")


def metadata(data: bytes) -> None:
    """A `.metadata` of torch.distributed.checkpoint."""
    from shardyard.errors import ShardyardError
    from shardyard.files import FileHandles
    from shardyard.formats.dcp.metadata import read_metadata

    with _file(data, ".metadata") as path, FileHandles(2) as handles, contextlib.suppress(ShardyardError):
        read_metadata(handles, str(path))


def index(data: bytes) -> None:
    """The index of a sharded model."""
    from shardyard.formats.hugging_face.index_file import parse_index

    parse_index(data, "model.safetensors.index.json")


def gguf(data: bytes) -> None:
    """A GGUF file."""
    _open(data, "model.gguf")


def npz(data: bytes) -> None:
    """A NumPy archive."""
    _open(data, "model.npz")


TARGETS: dict[str, Callable[[bytes], None]] = {
    "pickle": pickle,
    "zip": torch_zip,
    "safetensors": safetensors,
    "metadata": metadata,
    "index": index,
    "gguf": gguf,
    "npz": npz,
}


@contextlib.contextmanager
def _file(data: bytes, name: str) -> Iterator[Path]:
    _scratch.mkdir(exist_ok=True)
    path = _scratch / name
    path.write_bytes(data)
    try:
        yield path
    finally:
        path.unlink()


def _open(data: bytes, name: str) -> None:
    from shardyard.discover import open_checkpoint
    from shardyard.errors import ShardyardError

    with _file(data, name) as path, contextlib.suppress(ShardyardError):
        checkpoint = open_checkpoint(path)
        for part in checkpoint.parts.values():
            for tensor in part.tensors.values():
                if tensor.layout is not None:
                    tensor.layout.prove(tensor.nbytes)


def seeds(target: str) -> list[bytes]:
    """Small real inputs to begin with."""
    from support.checkpoints import fixture_root

    root = fixture_root()
    patterns = {
        "pickle": ("hostile/pickle/*.pt", "files/a3_*/*.pt"),
        "zip": ("files/a2_*/*.pt", "hostile/zip/*.pt", "files/a3_*/*.pt"),
        "safetensors": ("files/a6_*/*.safetensors", "hostile/safetensors/*.safetensors"),
        "metadata": ("dcp/*/*/.metadata", "dcp/*/*/*/.metadata"),
        "index": ("files/a1_*/*.index.json", "hostile/index/*/*.index.json"),
        "gguf": ("files/a4_gguf/*.gguf", "hostile/gguf/*.gguf"),
        "npz": ("files/a4_npz/*.npz",),
    }[target]
    found = [p.read_bytes() for pattern in patterns for p in sorted(root.glob(pattern)) if p.stat().st_size <= MOST_INPUT]
    return [_pickle_of(data) for data in found] if target == "pickle" else found


def _pickle_of(data: bytes) -> bytes:
    """The pickle inside a torch file, so that mutations hit it and not the checksum around it."""
    import io
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))
    except (zipfile.BadZipFile, StopIteration, NotImplementedError, RuntimeError, OSError, EOFError):
        return data


def mutate(data: bytes, chance: random.Random) -> bytes:
    """A few small changes: flipped bits, numbers at their limits, cut, doubled and moved pieces."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        if not out:
            return bytes([chance.randrange(256)])
        at, kind = chance.randrange(len(out)), chance.randrange(6)
        if kind == 0:
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            out[at : at + 8] = chance.choice((b"\xff" * 8, bytes(8), b"\xff" * 7 + b"\x7f", b"\1" + bytes(7)))
        elif kind == 2:
            del out[at : at + chance.randrange(1, 16)]
        elif kind == 3:
            out[at:at] = out[at : at + chance.randrange(1, 32)]
        elif kind == 4:
            other = chance.randrange(len(out))
            out[at : at + 4] = out[other : other + 4]
        else:
            del out[at:]
    return bytes(out[:MOST_INPUT])


def mutated(target: str, seconds: float, seed: int = 0) -> int:
    """Mutate seeds without guidance for so long; returns how many inputs were tried."""
    chance = random.Random(seed)
    known = seeds(target)
    end = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < end:
        data = mutate(chance.choice(known), chance)
        tried += 1
        _try(target, data)
    return tried


def _try(target: str, data: bytes) -> None:
    start = time.process_time()
    try:
        TARGETS[target](data)
    except BaseException:
        print(f"{target}: a fault; the input is {_keep(target, data)}")
        raise
    if time.process_time() - start > 2:
        raise AssertionError(f"{target}: an input took over 2 seconds; it is {_keep(target, data)}")


def _keep(target: str, data: bytes) -> Path:
    import hashlib

    folder = KEPT / target
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path


def guided(target: str, seconds: int) -> None:
    """Let atheris drive a target; never returns."""
    import atheris

    corpus = KEPT / target / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for i, data in enumerate(seeds(target)):
        (corpus / f"seed{i}").write_bytes(data)
    # Imported here so that atheris sees every branch of ours, and of nothing else.
    with atheris.instrument_imports(include=["shardyard"]):
        TARGETS[target](b"")
    options = [f"-max_total_time={seconds}", f"-max_len={MOST_INPUT}", "-timeout=5", "-rss_limit_mb=1024"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={KEPT / target}/", str(corpus)], lambda data: _try(target, data))
    atheris.Fuzz()


def main(arguments: list[str]) -> int:
    """Run each target in a process of its own; the exit code counts those that failed."""
    if arguments[:1] == ["--one"]:
        target, seconds = arguments[1], int(arguments[2])
        try:
            guided(target, seconds)
        except ImportError:
            print(f"{target}: {mutated(target, seconds):,} inputs, unguided (atheris is not installed)")
        return 0
    seconds = int(arguments[0]) if arguments else 60
    failed = 0
    for target in arguments[1:] or list(TARGETS):
        done = subprocess.run([sys.executable, str(HERE), "--one", target, str(seconds)], check=False)
        print(f"{target}: {'held' if done.returncode == 0 else 'FAILED'} for {seconds} s")
        failed += done.returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
