"""The command line: exit codes, key lines, and messages instead of tracebacks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

import diface

TOUR_NEEDS = ("rich", "scipy", "sklearn")


def command(*words: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    start = [sys.executable, "-m", "diface"] if code is None else [sys.executable, "-c", code]
    return subprocess.run([*start, *words], capture_output=True, text=True, env=environment, timeout=300)


def need(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def test_tour() -> None:
    need(*TOUR_NEEDS)
    done = command("tour")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All engines agree." in done.stdout
    for name in ("jax", "torch", "autograd", "finite_diff", "complex_step"):
        shown = f"│ {name} " if diface.is_available(name) else f"Not installed: {name}"
        assert shown in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "Traceback" not in done.stderr


def test_doctor() -> None:
    need("rich")
    done = command("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"diface {diface.__version__}" in done.stdout
    assert "finite_diff" in done.stdout
    assert "What may bite on this machine:" in done.stdout
    if diface.is_available("torch"):
        assert "shared, " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_doctor_tells_of_a_broken_engine() -> None:
    need("rich", "autograd")
    done = command(
        "doctor",
        code="""
import sys
class Break:
    def find_spec(self, name, path=None, target=None):
        if name == "autograd.builtins":
            raise ModuleNotFoundError("No module named 'gone'", name="gone")
sys.meta_path.insert(0, Break())
from diface.__main__ import main
sys.exit(main(sys.argv[1:]))
""",
    )
    assert done.returncode == 1
    assert "failed to load" in done.stdout
    assert "gone" in done.stdout


def test_help_and_version() -> None:
    done = command("--help")
    assert done.returncode == 0
    assert "tour" in done.stdout
    assert "doctor" in done.stdout
    assert command("--version").stdout.strip() == f"diface {diface.__version__}"


@pytest.mark.parametrize("words", [(), ("holiday",)])
def test_unknown_command(words: tuple[str, ...]) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert "tour" in done.stderr or "command" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["tour", "doctor"])
def test_without_rich(name: str) -> None:
    done = command(
        name,
        code="""
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "rich":
            raise ModuleNotFoundError("No module named 'rich'", name="rich")
sys.meta_path.insert(0, Hide())
from diface.__main__ import main
sys.exit(main(sys.argv[1:]))
""",
    )
    assert done.returncode == 1
    assert f'{name}: needs rich, which is not installed. Run: pip install "diface[cli]"' in done.stderr
    assert "Traceback" not in done.stderr
