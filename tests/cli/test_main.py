"""The command line's own manners: start-up cost, errors as one sentence, completion scripts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardyard import __version__
from shardyard.cli import VERBS
from support.command import last_line, shardyard

HEAVY = ("torch", "numpy", "ml_dtypes", "textual", "rich", "zstandard", "safetensors")


def modules_after(code: str) -> set[str]:
    """Top-level modules in sys.modules after running code in a fresh process."""
    script = f"{code}\nimport sys\nprint(','.join(sorted({{m.split('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split(","))


def test_importing_the_library_loads_nothing_heavy() -> None:
    assert not modules_after("import shardyard, shardyard.discover, shardyard.operations.inspect.report") & set(HEAVY)


def test_inspecting_a_checkpoint_loads_nothing_heavy(tmp_path: Path) -> None:
    code = f"from shardyard import demo\nfrom pathlib import Path\ndemo.write(Path({str(tmp_path / 'demo')!r}))\n"
    code += f"from shardyard.cli import main\nassert main(['inspect', {str(tmp_path / 'demo')!r}]) == 0"
    assert not modules_after(code) & set(HEAVY)


def test_version_is_said_without_loading_anything_else() -> None:
    done = shardyard("--version")
    assert (done.returncode, done.stdout) == (0, f"shardyard {__version__}\n")


def test_help_names_every_verb() -> None:
    done = shardyard("--help")
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    done = shardyard(verb, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: shardyard {verb}")


def test_a_path_that_is_not_there_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    done = shardyard(tmp_path / "nowhere")
    assert done.returncode == 2
    assert "nowhere" in last_line(done)
    assert "Traceback" not in done.stderr


def test_control_characters_of_a_path_are_not_printed(tmp_path: Path) -> None:
    done = shardyard("inspect", tmp_path / "bad\x1b[31mname")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_accepted_by_their_shells(shell: str, tmp_path: Path) -> None:
    done = shardyard("completion", shell)
    assert done.returncode == 0
    assert "merge" in done.stdout and "max-shard-size" in done.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "completion"
    script.write_text(done.stdout)
    checked = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_bash_completes_verbs_and_options(tmp_path: Path) -> None:
    script = shardyard("completion", "bash").stdout
    probe = f"{script}\nCOMP_WORDS=(shardyard merge --max); COMP_CWORD=2; _shardyard; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", probe], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["--max-shard-size"]
