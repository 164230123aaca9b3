"""Comparing what came with what is expected: structure, library, dtype, device and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from diface import _pytree
from diface._exchange import library_of
from diface.testing._callers import Caller

__all__ = ["as_numpy", "inner", "mismatches", "same", "snapshot"]


def mismatches(
    expected: Any, came: Any, rtol: float, atol: float, caller: Caller, device: str | None
) -> list[str]:
    """A line for each way in which ``came`` is not what is expected, in the caller's terms."""
    wanted, spec = _pytree.flatten(expected)
    leaves, came_spec = _pytree.flatten(came)
    if spec != came_spec:
        return [f"structure: expected {spec}, came {came_spec}"]
    lines = []
    for path, a, b in zip(_pytree.paths(spec, "result"), wanted, leaves, strict=True):
        line = _leaf(a, b, rtol, atol, caller, device)
        if line is not None:
            lines.append(f"{path}: {line}")
    return lines


def _leaf(a: Any, b: Any, rtol: float, atol: float, caller: Caller, device: str | None) -> str | None:
    if not isinstance(a, (np.ndarray, np.generic, float, complex)):
        return None if type(a) is type(b) and a == b else f"expected {a!r}, came {b!r}"
    line = _kind(a, b, caller, device)
    if line is not None:
        return line
    array = caller.back(b) if isinstance(a, np.ndarray) and a.dtype.kind in "fc" else np.asarray(b)
    return _numbers(np.asarray(a), array, rtol, atol)


def _kind(a: Any, b: Any, caller: Caller, device: str | None) -> str | None:
    """What is wrong with the library, dtype, shape or device of ``b``."""
    if not isinstance(a, np.ndarray):
        if type(a) is not type(b):
            return f"expected {type(a).__name__} {a!r}, came {type(b).__name__} {b!r}"
        return None
    # Integer arrays are NumPy constants of the function, which pass through as they are.
    like = caller.into(np.zeros(1)) if a.dtype.kind in "fc" else a
    wanted, library = library_of(like), library_of(b)
    if library is not wanted or library is None:
        return f"expected an array like {type(like).__name__}, came {type(b).__name__} {b!r}"
    spec = library.describe(b)
    if (spec.dtype, spec.shape) != (a.dtype.name, a.shape):
        return f"expected {a.dtype.name}{list(a.shape)}, came {spec.dtype}{list(spec.shape)}"
    if device is not None and a.dtype.kind in "fc" and spec.device != device:
        return f"expected on {device}, came on {spec.device}"
    if type(b) is np.ndarray and not b.flags.writeable:
        return "expected an array that can be written into, came a read-only one"
    return None


def _numbers(a: Any, b: Any, rtol: float, atol: float) -> str | None:
    if not a.size:
        return None
    scale = np.max(np.abs(a))
    gaps = np.abs(a - b)
    # Written so that NaN is not within any tolerance.
    if np.all(gaps <= rtol * scale + atol):
        return None
    worst = np.unravel_index(np.argmax(np.where(np.isnan(gaps), np.inf, gaps)), gaps.shape)
    where = f" at {tuple(map(int, worst))}" if a.ndim else ""
    off = f"(off by {gaps[worst]:.3g}; allowed {rtol * scale + atol:.3g})"
    return f"expected {a[worst]}, came {b[worst]}{where} {off}"


def as_numpy(tree: Any, caller: Caller) -> list[Any]:
    """The arrays and numbers of ``tree``, by NumPy."""
    arrays = []
    for x in _pytree.flatten(tree)[0]:
        library = library_of(x)
        if library is not None:
            arrays.append(np.asarray(x if library.name in _PLAIN else caller.back(x)))
    return arrays


_PLAIN = ("numpy", "numpy scalar", "python")


def snapshot(tree: Any, caller: Caller) -> list[bytes]:
    """The bytes of every array in ``tree``."""
    return [x.tobytes() for x in as_numpy(tree, caller)]


def same(a: Any, b: Any, caller: Caller, rtol: float = 0.0) -> bool:
    """Whether two results hold the same numbers."""
    pairs = list(zip(as_numpy(a, caller), as_numpy(b, caller), strict=True))
    return all(_close(x, y, rtol) for x, y in pairs)


def _close(x: Any, y: Any, rtol: float) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if not x.size or np.array_equal(x, y, equal_nan=x.dtype.kind in "fc"):
        return True
    return bool(rtol) and bool(np.all(np.abs(x - y) <= rtol * max(np.max(np.abs(x)), 1.0)))


def inner(a: list[Any], b: list[Any]) -> float:
    """Re⟨a, b⟩ over lists of arrays, in double precision."""
    return float(
        sum(np.sum((np.conj(x).astype("complex128") * y).real) for x, y in zip(a, b, strict=True))
    )
