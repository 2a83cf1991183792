"""What the names in a pickle would do if it were loaded with Python's pickle: data, unknown classes, or running code.

The names are judged as text; nothing is imported to find out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from shardyard.findings import Finding, Severity
from shardyard.text import printable

MOST_NAMED = 8


class Danger(Enum):
    """How bad it would be to load a file with this name in it."""

    DATA = "data"
    """A part of torch, numpy or Python that only holds data."""
    UNKNOWN = "unknown"
    """A class or function of some package: what it does depends on that package."""
    CODE = "code"
    """Runs a program, reads or writes files, or loads more code."""


_RUNNING = """
    asyncio bdb cgitb code codeop commands ctypes distutils doctest ensurepip fileinput ftplib glob http httplib imaplib imp
    importlib inspect io linecache marshal mmap multiprocessing nntplib nt os pdb pickle _pickle pip pkgutil platform poplib
    popen2 posix posixpath ntpath profile pty pydoc requests resource runpy select shelve shlex shutil signal site smtplib
    socket socketserver ssl subprocess _posixsubprocess sys syslog tarfile telnetlib tempfile test threading _thread timeit
    trace turtle urllib urllib2 urllib3 venv webbrowser winreg _winreg xmlrpc zipfile zipimport cProfile aiohttp cffi torch.hub
    torch.package torch.utils.cpp_extension torch.utils.model_zoo torch.jit torch.compiler torch.serialization
    torch.multiprocessing torch.distributed.rpc torch.utils.data.datapipes torch.fx numpy.testing numpy.f2py numpy.distutils
    numpy.lib.npyio joblib dill cloudpickle IPython _io atexit concurrent gc idlelib jinja2 logging pathlib2 sqlite3 unittest
"""
_BUILTINS = """
    eval exec execfile compile open input raw_input __import__ breakpoint exit quit help globals locals vars reload apply
    setattr delattr file
"""
_DATA = """
    collections _codecs copyreg datetime decimal fractions uuid pathlib argparse enum types zoneinfo numpy ml_dtypes torch
    __torch__
"""
_CODE_MODULES = frozenset(_RUNNING.split())
_CODE_BUILTINS = frozenset(_BUILTINS.split())
_CODE_NAMES = frozenset(
    {
        "torch.load",
        "torch.save",
        "operator.methodcaller",
        "numpy.load",
        "numpy.save",
        "numpy.fromfile",
        "codecs.open",
        "torch.from_file",
    }
)
_PARTS = re.compile(
    r"(?:^|\.)(?:os|posix|nt|subprocess|sys|shutil|socket|ctypes|importlib)\."
    r"(?:system|popen|Popen|exec\w*|spawn\w*|fork\w*|call|check_\w+|run|modules|rmtree|CDLL|import_module)(?:\.|$)"
)
_FILE_METHODS = re.compile(
    r"^pathlib\..*\.(?:touch|write_\w+|open|unlink|mkdir|rmdir|chmod|rename|replace|symlink_to|link_to|read_\w+)$"
)
_DATA_MODULES = frozenset(_DATA.split())
_HARMLESS = frozenset(
    {
        "torch.serialization._get_layout",
        "torch.jit._pickle.build_intlist",
        "torch.jit._pickle.build_doublelist",
        "torch.jit._pickle.build_boollist",
        "torch.jit._pickle.build_tensorlist",
        "torch.jit._pickle.restore_type_tag",
        "io.BytesIO",
        "_io.BytesIO",
        "io.StringIO",
        "_io.StringIO",
        "signal.Signals",
        "functools.partial",
    }
)


def danger_of(module: str, name: str) -> Danger:
    """Judge one name."""
    module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
    path = f"{module}.{name}"
    if path in _HARMLESS:
        return Danger.DATA
    if module == "builtins":
        return Danger.CODE if name.partition(".")[0] in _CODE_BUILTINS else Danger.DATA
    if path in _CODE_NAMES or _PARTS.search(path) or _FILE_METHODS.match(path):
        return Danger.CODE
    parts = path.split(".")
    if any(".".join(parts[:n]) in _CODE_MODULES for n in range(1, len(parts))):
        return Danger.CODE
    return Danger.DATA if parts[0] in _DATA_MODULES else Danger.UNKNOWN


def unsafe_findings(names: Mapping[tuple[str, str], int], file: str) -> list[Finding]:
    """What to say about the names in a file: at most one finding for code and one for unknown classes."""
    judged = {key: danger_of(*key) for key in names}
    found = []
    code = [f"{m}.{n}" for (m, n), danger in judged.items() if danger is Danger.CODE]
    if code:
        said = f"{printable(file)} names {_listed(code)}, which would run code if it were loaded with pickle; nothing was run."
        remedy = "Do not load it with torch.load(weights_only=False); a merge to safetensors takes over the tensors alone."
        found.append(Finding("unsafe-pickle", Severity.ERROR, said, remedy, (file,)))
    unknown = [f"{m}.{n}" for (m, n), danger in judged.items() if danger is Danger.UNKNOWN]
    if unknown:
        said = (
            f"{printable(file)} holds objects of classes that are not torch's: {_listed(unknown)}; they are shown and not made."
        )
        found.append(Finding("unsafe-pickle", Severity.INFO, said, "", (file,)))
    return found


def _listed(names: list[str]) -> str:
    shown = ", ".join(printable(n, 80) for n in names[:MOST_NAMED])
    return shown if len(names) <= MOST_NAMED else f"{shown} and {len(names) - MOST_NAMED} more"
