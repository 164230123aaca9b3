"""``python -m diface doctor``: what is installed, how arrays cross, and what may bite on this machine."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
import warnings
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import diface
from diface._engine import ArrayLibrary
from diface._exchange import NUMPY, convert, ledger
from diface._registry import guest_of
from diface._specs import BUILT_IN

__all__ = ["run"]


def run() -> int:
    """Prints the report; returns the exit code: 1 if an installed engine does not load."""
    console = Console(highlight=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        listed = diface.backends()
    broken = [str(w.message) for w in caught if "failed to load" in str(w.message)]
    console.print(f"diface {diface.__version__}, Python {platform.python_version()}, {platform.platform()}\n")
    _engines(console, listed)
    libraries = _libraries()
    _crossings(console, libraries)
    console.print("\nWhat may bite on this machine:")
    for line in [*broken, *_remarks(libraries)]:
        console.print(f"  • {line}", markup=False)
    return 1 if broken else 0


def _engines(console: Console, listed: list[diface.BackendInfo]) -> None:
    table = Table("engine", "version", "devices", "modes")
    for info in listed:
        if info.installed:
            table.add_row(info.name, info.version, ", ".join(info.devices), ", ".join(info.modes))
        else:
            spec = BUILT_IN.get(info.name)
            advice = f'pip install "diface\\[{spec.extra}]"' if spec is not None else "(does not load)"
            table.add_row(info.name, "not installed", advice, ", ".join(info.modes))
    console.print(table)


def _libraries() -> list[ArrayLibrary]:
    """NumPy's arrays, and those of the engines that are installed and have arrays of their own."""
    found: list[ArrayLibrary] = [NUMPY]
    for name in ("jax", "torch"):
        if diface.is_available(name):
            try:
                library = guest_of(BUILT_IN[name]()).library
            except Exception:  # reported as broken by the listing of engines
                continue
            if library is not None:
                found.append(library)
    return found


def _crossings(console: Console, libraries: list[ArrayLibrary]) -> None:
    if len(libraries) < 2:
        console.print("\nNo crossings: only NumPy's arrays are here.")
        return
    console.print("\nArrays of 100 000 floats from one library (row) into another (column):")
    table = Table("", *[library.name for library in libraries])
    for source in libraries:
        cells = ["" if source is target else _crossing(source, target) for target in libraries]
        table.add_row(source.name, *cells)
    console.print(table)
    console.print(
        "JAX on a CPU shares memory that starts at a multiple of 64 bytes (PyTorch's does), and copies other "
        "memory (NumPy's mostly); NumPy's results from JAX and PyTorch are always shared."
    )


def _crossing(source: ArrayLibrary, target: ArrayLibrary) -> str:
    # In memory that the library itself has laid out.
    x: Any = source.copy(convert(np.linspace(0, 1, 100_000, dtype=np.float32), NUMPY, source))
    with ledger() as entries:
        convert(x, source, target)
    times = []
    for _ in range(50):
        start = time.perf_counter()
        convert(x, source, target)
        times.append(time.perf_counter() - start)
    return f"{'shared' if entries[0].shared else 'copied'}, {statistics.median(times) * 1e6:.0f} µs"


def _remarks(libraries: list[ArrayLibrary]) -> list[str]:
    names = {library.name for library in libraries}
    lines = []
    if "jax" in names:
        jax: Any = sys.modules["jax"]
        if not jax.config.jax_enable_x64:
            lines.append(
                "JAX's 64-bit types are off. diface switches them on for its own calls with float64 arguments, so "
                'nothing is lost there; elsewhere in your program: jax.config.update("jax_enable_x64", True)'
            )
        on_gpu = any(device.platform != "cpu" for device in jax.devices())
        if on_gpu and "torch" in names and os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true") != "false":
            lines.append(
                "JAX takes three quarters of the GPU's memory at its first use, which leaves little to PyTorch: "
                "export XLA_PYTHON_CLIENT_PREALLOCATE=false"
            )
    if "torch" in names and "jax" in names:
        torch: Any = sys.modules["torch"]
        jax = sys.modules["jax"]
        on_gpu = any(device.platform != "cpu" for device in jax.devices())
        if torch.cuda.is_available() != on_gpu:
            one, other = ("PyTorch", "jax[cuda13]") if torch.cuda.is_available() else ("JAX", "torch (CUDA build)")
            lines.append(f"Only {one} sees a GPU: arrays cannot stay on it when engines mix. Install {other}.")
    return lines or ["nothing that is known of"]
