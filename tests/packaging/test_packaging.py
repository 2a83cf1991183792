"""What is installed: only two packages, everything they need, one version, and no heavy import."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import requires, version
from pathlib import Path

import pytest

import shardyard

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as pip builds it."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check", "-w", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot build here: {done.stderr.strip().splitlines()[-1]}")
    return next(out.glob("*.whl"))


def test_the_wheel_holds_two_packages_their_types_and_styles(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {n.partition("/")[0] for n in names if ".dist-info/" not in n} == {"shardyard", "shardyard_tui"}
    assert {"shardyard/py.typed", "shardyard_tui/py.typed", "shardyard_tui/shardyard.tcss"} <= set(names)
    assert not [n for n in names if "test" in n.lower()]


def test_the_wheel_runs_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import shardyard; print(shardyard.__file__)"
    script += "\nfrom shardyard.cli import main\nsys.exit(main(['demo', 'tree', '--no-app']))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout.splitlines()[0]


def test_the_version_comes_from_one_place() -> None:
    assert version("shardyard") == shardyard.__version__
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


def test_the_base_install_needs_no_torch_and_no_training_framework() -> None:
    base = [r for r in requires("shardyard") or () if "extra ==" not in r]
    assert not [r for r in base if r.startswith(("torch", "deepspeed", "accelerate", "transformers", "pydantic"))]
    assert len(base) <= 9


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "shardyard", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"shardyard {shardyard.__version__}\n"
