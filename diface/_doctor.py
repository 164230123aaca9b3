"""``python -m diface doctor``: what is installed, how arrays cross, and what may bite on this machine."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
import warnings
from importlib import metadata
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

import diface
from diface._engine import ArrayLibrary
from diface._exchange import NUMPY, convert, ledger
from diface._registry import guest_of
from diface._specs import BUILT_IN

__all__ = ["run"]


def run() -> int:
    """Prints the report; returns the exit code: 1 if an installed engine does not load, or a crossing fails."""
    console = Console(highlight=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        listed = diface.backends()
    broken = [_mend(str(w.message)) for w in caught if "failed to load" in str(w.message)]
    console.print(f"diface {diface.__version__}, Python {platform.python_version()}, {platform.platform()}\n")
    _engines(console, listed)
    libraries = _libraries()
    broken += _crossings(console, libraries)
    console.print("\nWhat may bite on this machine:")
    remarks = Table.grid(padding=(0, 1))
    for line in [*broken, *_remarks(libraries)] or ["nothing that is known of"]:
        remarks.add_row(" •", Text(line))
    console.print(remarks)
    return 1 if broken else 0


def _mend(message: str) -> str:
    extra = next((spec.extra for name, spec in BUILT_IN.items() if f"backend {name!r}" in message and spec.extra), None)
    return f"{message}. " + (
        f'Install it anew: pip install --force-reinstall "diface[{extra}]"'
        if extra else "Install anew the distribution that provides it."
    )


def _engines(console: Console, listed: list[diface.BackendInfo]) -> None:
    table = Table("engine", "version", "devices", "modes")
    for info in listed:
        if info.installed:
            table.add_row(info.name, info.version, ", ".join(info.devices), ", ".join(info.modes))
        elif _present(info.name):
            table.add_row(info.name, "does not load", "see below", ", ".join(info.modes))
        else:
            spec = BUILT_IN.get(info.name)
            advice = f'pip install "diface\\[{spec.extra}]"' if spec is not None else ""
            table.add_row(info.name, "not installed", advice, ", ".join(info.modes))
    console.print(table)


def _present(name: str) -> bool:
    """Whether an engine that is not usable is installed all the same: then it is broken."""
    try:
        return diface.is_available(name)
    except Exception:  # its description does not even load
        return True


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


def _crossings(console: Console, libraries: list[ArrayLibrary]) -> list[str]:
    """Prints the matrix; returns a line for each crossing that fails."""
    if len(libraries) < 2:
        console.print("\nNo crossings: only NumPy's arrays are here.")
        return []
    console.print("\nArrays of 100 000 floats from one library (row) into another (column):")
    table = Table("", *[library.name for library in libraries])
    broken: list[str] = []
    for source in libraries:
        cells = []
        for target in libraries:
            try:
                cells.append("" if source is target else _crossing(source, target))
            except Exception as error:  # one that fails is what a reader of this report looks for
                cells.append("fails")
                broken.append(_blocked(source.name, target.name, error))
        table.add_row(source.name, *cells)
    console.print(table)
    console.print(
        "JAX on a CPU shares memory that starts at a multiple of 64 bytes (PyTorch's does), and copies other "
        "memory (NumPy's mostly). NumPy shares the memory of JAX and PyTorch on a CPU for each dtype that it has."
    )
    return broken


def _blocked(source: str, target: str, error: Exception) -> str:
    line = f"An array of {source} does not get into {target} ({type(error).__name__}: {error})."
    if source == "jax" and sys.modules["jax"].default_backend() != "cpu":
        # What comes from NumPy goes to JAX's default device, which NumPy cannot read.
        return f"{line} Keep JAX on the CPU: export JAX_PLATFORMS=cpu"
    return f"{line} Please report it, with this page."


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
    if "jax" in names and not sys.modules["jax"].config.jax_enable_x64:
        lines.append(
            "JAX's 64-bit types are off. diface switches them on for its own calls with float64 arguments, so "
            'nothing is lost there; elsewhere in your program: jax.config.update("jax_enable_x64", True)'
        )
    if "torch" in names:
        lines += _busy(sys.modules["torch"].get_num_threads())
    if {"jax", "torch"} <= names:
        lines += _gpu(sys.modules["jax"], sys.modules["torch"])
    return lines


def _busy(threads: int) -> list[str]:
    if threads < 2 or "OMP_WAIT_POLICY" in os.environ or sys.platform == "win32":
        return []
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < 0.75 * cores:
        return []
    return [
        f"Other programs keep the processor busy (load {load:.1f} on {cores} cores). PyTorch's threads wait for one "
        "another by spinning, which can then make small operations many times slower: "
        "export OMP_WAIT_POLICY=PASSIVE, or torch.set_num_threads(1)"
    ]


def _gpu(jax: Any, torch: Any) -> list[str]:
    in_jax = any(device.platform == "gpu" for device in jax.devices())
    in_torch = torch.cuda.is_available()
    if not (in_jax or in_torch):
        return []
    # PyTorch with ROCm says so by torch.version.hip, and then has no CUDA version.
    ours = (torch.version.cuda or "").partition(".")[0]
    wanted = f'pip install "jax[cuda{ours}]"' if ours else "a build of JAX for your GPU: docs.jax.dev"
    if in_torch and not in_jax:
        return [f"Only PyTorch sees a GPU: arrays cannot stay on it when engines mix. For JAX to see it: {wanted}"]
    if not in_torch:
        return [
            "Only JAX sees a GPU: arrays cannot stay on it when engines mix. Install a build of PyTorch for it: "
            "pytorch.org/get-started"
        ]
    lines = []
    theirs = _cuda_of_jax()
    if ours and theirs and ours not in theirs:
        lines.append(
            f"PyTorch was built for CUDA {ours}, JAX for CUDA {' and '.join(theirs)}: two sets of CUDA's libraries "
            f"in one process, which may clash. Have one: {wanted}"
        )
    preallocates = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true").lower() not in ("false", "0")
    if preallocates and os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower() != "platform":
        lines.append(
            "JAX takes three quarters of the GPU's memory at its first use, which leaves little to PyTorch: "
            "export XLA_PYTHON_CLIENT_PREALLOCATE=false"
        )
    return lines


def _cuda_of_jax() -> list[str]:
    """The major versions of CUDA whose plugins for JAX are installed."""
    found = []
    for major in ("12", "13", "14"):
        try:
            metadata.version(f"jax-cuda{major}-plugin")
        except metadata.PackageNotFoundError:
            continue
        found.append(major)
    return found
