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


WRONG = """
import sys
import diface._tour as tour
true = tour.loss
def wrong(w, X, t):
    factor = 1.001 if type(w).__module__.partition(".")[0] == "autograd" else 1.0
    return true(w, X, t) * factor
tour.loss = wrong
tour._ENGINES = ("autograd", "complex_step")
sys.exit(tour.run())
"""


def test_tour_tells_of_an_engine_that_disagrees() -> None:
    need(*TOUR_NEEDS, "autograd")
    done = command(code=WRONG)
    assert done.returncode == 1, done.stdout + done.stderr
    shown = " ".join(done.stdout.split())
    assert "DISAGREEMENT: the gradients by complex_step and autograd agree to 3.0 digits; 10 were expected." in shown
    assert "All engines agree." not in shown
    assert "Traceback" not in done.stderr


HIDDEN = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib", "torch", "autograd"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
from diface.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("name", ["tour", "doctor"])
def test_with_no_engine_installed(name: str) -> None:
    need(*TOUR_NEEDS)
    done = command(name, code=HIDDEN)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = " ".join(done.stdout.split())
    for engine in ("jax", "torch", "autograd"):
        assert f'"diface[{engine}]"' in shown
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["tour", "doctor"])
def test_a_broken_engine_leaves_the_others(name: str) -> None:
    need(*TOUR_NEEDS, "autograd")
    hidden = HIDDEN.replace('"torch", "autograd")', '"torch")').replace(
        "    def find_spec(self, name, path=None, target=None):\n",
        "    def find_spec(self, name, path=None, target=None):\n"
        '        if name == "autograd.builtins":\n'
        '            raise ImportError("libgone.so is not there")\n',
    )
    done = command(name, code=hidden)
    assert done.returncode == 1, done.stdout + done.stderr
    shown = " ".join(done.stdout.split())
    assert "libgone.so is not there" in shown
    assert ("pip install --force-reinstall" if name == "doctor" else "All engines that work here agree.") in shown
    assert ("does not load" if name == "doctor" else "does not work here: autograd") in shown
    assert "Traceback" not in done.stderr


UNREADABLE = """
import sys
from diface._exchange import NumpyLibrary
from diface_backends.jax_arrays import JAXLibrary
def refuse(self, x):
    raise BufferError("Unsupported device in DLTensor.")
JAXLibrary.to_numpy = lambda self, x: None  # as for arrays on a GPU
NumpyLibrary.from_dlpack = refuse
import diface._tour as tour
tour._ENGINES = ("jax", "complex_step")
from diface.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("name", ["tour", "doctor"])
def test_a_crossing_that_fails_is_reported(name: str) -> None:
    need(*TOUR_NEEDS, "jax")
    done = command(name, code=UNREADABLE)
    assert done.returncode == 1, done.stdout + done.stderr
    shown = " ".join(done.stdout.split())
    assert "(BufferError: Unsupported device in DLTensor.)" in shown
    assert ("An array of jax does not get into numpy" if name == "doctor" else "does not work here: jax") in shown
    assert "Traceback" not in done.stderr


def test_a_terminal_without_unicode() -> None:
    need("rich")
    code = HIDDEN.replace('("jax", "jaxlib", "torch", "autograd")', '("jax", "jaxlib", "autograd")')
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor"], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


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
    assert "The commands are tour and doctor." in done.stderr
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
