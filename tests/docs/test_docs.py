"""Every command and example in the documents is run."""

from __future__ import annotations

import doctest
import re
import shlex
import sys
from pathlib import Path

import pytest

from support.command import shardyard

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"


def fences(path: Path, kind: str) -> list[str]:
    """The contents of a document's fenced blocks of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", path.read_text(), re.S | re.M)


def commands(path: Path) -> list[tuple[list[str], int]]:
    """(arguments, expected exit code) of each command in `console` blocks, in order."""
    found = []
    for block in fences(path, "console"):
        for line in block.splitlines():
            command, _, comment = line.removeprefix("$ shardyard ").partition("#")
            expected = re.search(r"exits (\d+)", comment)
            found.append((shlex.split(command), int(expected[1]) if expected else 0))
    return found


def test_every_command_of_the_guide_does_what_it_says(tmp_path: Path) -> None:
    listed = commands(DOCS / "guide.md")
    assert len(listed) > 20
    for arguments, expected in listed:
        done = shardyard(*arguments, cwd=tmp_path)
        assert done.returncode == expected, f"shardyard {shlex.join(arguments)}\n{done.stderr}"
        assert "Traceback" not in done.stderr


def test_every_example_of_the_library_page_gives_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed (the torch extra)")
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    result = doctest.testfile(str(DOCS / "library.md"), module_relative=False, optionflags=flags)
    assert result.attempted > 15
    assert result.failed == 0


def test_the_worked_example_of_a_format_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = fences(DOCS / "architecture.md", "python")
    namespace: dict[str, object] = {"__name__": "raw_format"}
    exec(compile(source, "architecture.md", "exec"), namespace)
    from shardyard import library
    from shardyard.formats import registry

    every = registry.formats()
    # By its module object: the package gives the name to the function of that name.
    monkeypatch.setattr(sys.modules["shardyard.discover.look"], "formats", lambda: (*every[:-1], namespace["FORMAT"], every[-1]))
    values = bytes(range(40))
    (tmp_path / "vector.f32").write_bytes(values)
    library.merge(tmp_path / "vector.f32", out=tmp_path / "out.safetensors")
    with library.open(tmp_path / "out.safetensors") as merged:
        assert merged["vector"].read().tobytes() == values


def test_the_readmes_commands_are_verbs_and_options_that_exist() -> None:
    lines = re.findall(r"^    shardyard (.*?)(?:\s+#.*)?$", README.read_text(), re.M)
    assert len(lines) >= 6
    for line in lines:
        verb, *rest = shlex.split(line)
        help_text = shardyard(verb, "--help").stdout
        options = [word.split("=")[0] for word in rest if word.startswith("-")]
        assert help_text and all(option in help_text for option in options), line


def test_links_between_documents_lead_somewhere() -> None:
    for path in (README, *DOCS.glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_readme_names_the_commands_of_the_makefile() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for name in re.findall(r"`?make (\w+)`?", README.read_text()):
        assert f"\n{name}:" in makefile
