"""What the numeric engines share: steps, displacements and sums on arrays of any library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from diface.extend import Arrays, library_of

__all__ = [
    "assemble",
    "directions",
    "displaced",
    "epsilon",
    "magnitude",
    "numbers",
    "real_directions",
    "stack",
    "zeros_like",
]

_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "complex64": 2.0**-23}


def epsilon(xs: Arrays) -> float:
    """The machine epsilon of the least precise of ``xs``."""
    return max((_EPSILON.get(str(x.dtype).rpartition(".")[2], 2.0**-52) for x in xs), default=2.0**-52)


def namespace(x: Any) -> Any:
    """The module to compute on ``x`` with."""
    library = library_of(x)
    assert library is not None
    return library.namespace(x)


def numbers(x: Any) -> np.ndarray[Any, Any]:
    """The values of ``x`` as NumPy numbers (through the host for a device array: they are looked at)."""
    if isinstance(x, (np.ndarray, np.generic)):
        return np.asarray(x)
    xp = namespace(x)
    wide = "complex" if "complex" in str(x.dtype) else "float"
    flat = xp.reshape(x, (-1,))
    return np.asarray(flat.tolist(), dtype=wide).reshape(tuple(x.shape))


def directions(txs: Arrays, size: int) -> list[Arrays]:
    """The rows of batched tangents."""
    return [tuple([t[i] for t in txs]) for i in range(size)]


def magnitude(xs: Sequence[np.ndarray[Any, Any]], t: Sequence[np.ndarray[Any, Any]]) -> tuple[float, float]:
    """The size of the elements of x that a direction moves (at least 1), and its own largest element.

    For a unit direction the former is that of its one element.
    """
    size, largest = 1.0, 0.0
    for x, v in zip(xs, t, strict=True):
        if v.size:
            moved = np.abs(v)
            largest = max(largest, float(np.max(moved)))
            touched = np.abs(x[moved > 0])
            if touched.size:
                size = max(size, float(np.max(touched)))
    return size, largest


def displaced(xs: Arrays, h: complex, t: Arrays) -> Arrays:
    """``x + h t``, in new memory and in the dtype of x."""
    return tuple([x + h * v for x, v in zip(xs, t, strict=True)])


def zeros_like(x: Any) -> Any:
    """Zeros like ``x``."""
    return namespace(x).zeros_like(x)


def stack(rows: Sequence[Arrays]) -> Arrays:
    """Rows of arrays as arrays with a leading axis."""
    return tuple([namespace(parts[0]).stack(parts) for parts in zip(*rows, strict=True)])


def is_complex(x: Any) -> bool:
    """Whether ``x`` has a complex dtype."""
    return "complex" in str(x.dtype)


def real_directions(xs: Arrays) -> list[Arrays]:
    """The unit directions of ``xs`` as a real space: e, and i·e where x is complex."""
    turned = [k for k, x in enumerate(xs) if is_complex(x)]
    return basis(xs, range(len(xs))) + [
        tuple([1j * v if k in turned else v for k, v in enumerate(unit)])
        for unit in basis(xs, turned)
    ]


def basis(xs: Arrays, which: Sequence[int]) -> list[Arrays]:
    """The unit directions of ``xs``, along the arrays ``which``."""
    result = []
    for k, x in enumerate(xs):
        if k not in which:
            continue
        library = library_of(x)
        assert library is not None
        count = int(np.prod(tuple(x.shape)))
        if not count:
            continue
        eye = namespace(x).reshape(library.eye(count, x), (count, *x.shape))
        zero = [zeros_like(other) for other in xs]
        result += [(*zero[:k], eye[i], *zero[k + 1 :]) for i in range(count)]
    return result


def assemble(xs: Arrays, elements: Sequence[Any]) -> Arrays:
    """0-d derivatives along ``real_directions(xs)`` as a gradient, of arrays like ``xs``."""
    remaining = iter(elements)
    parts = [_array(x, remaining) for x in xs]
    return tuple(
        [part + 1j * _array(x, remaining) if is_complex(x) else part for x, part in zip(xs, parts, strict=True)]
    )


def _array(x: Any, elements: Iterator[Any]) -> Any:
    count = int(np.prod(tuple(x.shape)))
    if not count:
        return zeros_like(x)
    xp = namespace(x)
    return xp.reshape(xp.stack([xp.reshape(next(elements), ()) for _ in range(count)]), x.shape)
