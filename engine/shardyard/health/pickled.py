"""What a checkpoint's pickles refer to.  Nothing was imported or called; a loader that runs pickles would have.

Names are judged by module: code that can do anything, classes of training software that torch's safe mode refuses, and names that
every checkpoint has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from shardyard.checkpoint import Checkpoint
from shardyard.findings import Finding, Severity
from shardyard.health.words import listing

MOST_NAMED = 20


class Risk(Enum):
    """What loading a name with pickle could do."""

    RUNS_CODE = "runs code"
    FOREIGN = "foreign"
    """A class of other software: harmless here, refused by `torch.load(weights_only=True)`."""
    PLAIN = "plain"


_RUNS_CODE_MODULES = frozenset(
    {
        *(
            "os",
            "posix",
            "nt",
            "subprocess",
            "sys",
            "runpy",
            "pty",
            "socket",
            "shutil",
            "importlib",
            "ctypes",
            "pickle",
            "_pickle",
        ),
        *("webbrowser", "timeit", "code", "codeop", "commands", "multiprocessing", "threading", "asyncio", "signal", "tempfile"),
        *("builtins_exec", "pip", "pdb", "bdb", "cProfile", "profile", "trace", "doctest", "marshal", "types", "inspect", "gc"),
        *("urllib", "http", "ftplib", "smtplib", "telnetlib", "requests", "pathlib2", "glob", "platform", "idlelib", "distutils"),
        *("operator", "atexit", "faulthandler", "pkgutil", "zipimport", "linecache", "site", "ensurepip", "venv", "cffi"),
        *(
            "concurrent",
            "posixpath",
            "ntpath",
            "xmlrpc",
            "dill",
            "cloudpickle",
            "joblib",
            "shelve",
            "jinja2",
            "IPython",
            "sqlite3",
        ),
    }
)
_RUNS_CODE = frozenset(
    {
        *("builtins.eval", "builtins.exec", "builtins.compile", "builtins.open", "builtins.__import__", "builtins.getattr"),
        *("builtins.setattr", "builtins.delattr", "builtins.globals", "builtins.locals", "builtins.vars", "builtins.input"),
        *("builtins.breakpoint", "builtins.map", "builtins.filter", "builtins.apply", "builtins.execfile", "builtins.file"),
        *("functools.partial", "functools.reduce", "io.open", "io.FileIO", "_io.open", "_io.FileIO", "codecs.open"),
        *("torch.load", "torch.serialization.load", "torch.jit.load", "torch.hub.load", "torch.hub.load_state_dict_from_url"),
        *("torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline", "torch.storage._load_from_bytes"),
        *("numpy.load", "numpy.loads", "numpy.fromfile", "torch.fx.graph_module.reduce_graph_module", "torch.from_file"),
        *(
            "pathlib.Path.touch",
            "pathlib.Path.write_text",
            "pathlib.Path.write_bytes",
            "pathlib.Path.unlink",
            "linecache.getline",
        ),
        *("logging.config.listen", "logging.FileHandler", "unittest.mock.patch", "imaplib.IMAP4", "nntplib.NNTP"),
    }
)
_USUAL_CALLS = frozenset({"builtins.getattr", "functools.partial", "torch.storage._load_from_bytes", "operator.getitem"})
"""Names that harmless checkpoints have too: enums nested in classes, schedules, deep-copied storages."""
_PLAIN_HEADS = (
    "torch",
    "collections",
    "builtins",
    "numpy",
    "_codecs",
    "copyreg",
    "datetime",
    "decimal",
    "uuid",
    "pathlib",
    "argparse",
)
_HARMLESS = frozenset(
    {"operator.getitem", "types.SimpleNamespace", "pathlib.PosixPath", "pathlib.WindowsPath", "pathlib.PurePosixPath"}
)


def risk(name: str) -> Risk:
    """What a dotted name could do if pickle loaded it."""
    if name in _HARMLESS:
        return Risk.PLAIN
    head = name.partition(".")[0]
    parts = name.split(".")
    if head in _RUNS_CODE_MODULES or name in _RUNS_CODE or _through(parts):
        return Risk.RUNS_CODE
    return Risk.PLAIN if head in _PLAIN_HEADS and ".testing." not in name else Risk.FOREIGN


def _through(parts: list[str]) -> bool:
    """A dangerous module reached through another (`torch.serialization.os.system`), or numpy's test helpers that run text."""
    inner = parts[1:-1]
    dangerous = {"os", "sys", "subprocess", "posix", "shutil", "importlib", "builtins", "pickle"}
    return any(p in dangerous for p in inner) or parts[-1] in ("system", "popen", "Popen", "runstring", "__import__")


def check(checkpoint: Checkpoint) -> Iterator[Finding]:
    """One finding for names that could run code, one for classes of other software."""
    by_risk = judged(checkpoint.globals)
    said = {f.code for f in checkpoint.findings}
    dangerous = by_risk[Risk.RUNS_CODE]
    usual = [n for n in dangerous if n in _USUAL_CALLS]
    serious = [n for n in dangerous if n not in _USUAL_CALLS]
    if serious and "unsafe-pickle" not in said:
        text = (
            f"The pickle names {listing(serious, 5)}, which would run code if the file were loaded with pickle; it was not run."
        )
        remedy = "Do not open this file with torch.load(weights_only=False); merge it to safetensors to be rid of the code."
        yield Finding("unsafe-pickle", Severity.WARNING, text, remedy, tensors=())
    foreign = sorted(by_risk[Risk.FOREIGN]) + usual
    if foreign:
        text = f"The pickle refers to {listing(foreign, 5)}, which are not data; nothing was imported or called."
        yield Finding("foreign-classes", Severity.INFO, text)


def judged(names: Mapping[str, int]) -> dict[Risk, list[str]]:
    """The names of a checkpoint's pickles by risk, each list sorted."""
    found: dict[Risk, list[str]] = {r: [] for r in Risk}
    for name in sorted(names):
        found[risk(name)].append(name)
    return found
