"""The complex step: derivatives of analytic NumPy functions to machine precision.

``f(x + i h t) = f(x) + i h J t + O(h²)``, so ``Im f(x + i h t) / h`` is the derivative with no subtraction
and so no rounding error, however small h. Source: W. Squire and G. Trapp, SIAM Review 40 (1998); for
second derivatives K.-L. Lai and J. Crassidis, J. Comput. Appl. Math. 219 (2008).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diface import AutoComplexStep
from diface.errors import NotDifferentiableError, UnsupportedError
from diface.extend import NUMPY, Arrays, Function, Guest, PullbackMap, Results
from diface_backends.numeric import assemble, directions, displaced, epsilon, magnitude, real_directions, stack

__all__ = ["ComplexStepGuest"]

_STEP = {"float64": 1e-40, "float32": 1e-15}
_ADVICE = (
    "The complex step needs an analytic function: no abs, conj, real, imag, angle or norm of x. "
    "Use diface.AutoFiniteDiff(), or an engine that follows the program."
)


class ComplexStepGuest(Guest):
    """Differentiates analytic functions written with NumPy."""

    specification = AutoComplexStep
    name = "complex_step"
    library = NUMPY
    modes = frozenset({"forward"})
    vectorized = True
    numeric = True
    once = False

    def value_and_pullback(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, PullbackMap]:
        raise NotImplementedError("complex_step has no reverse mode; core derives it from pushforwards")

    def value_and_pushforward(self, function: Function, xs: Arrays, txs: Arrays) -> Results:
        ys, aux, rows = _pushforwards(function, xs, [txs])
        return ys, aux, rows[0]

    def value_and_batched_pushforward(self, function: Function, xs: Arrays, txs: Arrays, size: int) -> Results:
        ys, aux, rows = _pushforwards(function, xs, directions(txs, size))
        return ys, aux, stack(rows)

    def value_gradient_and_batched_hvp(
        self, function: Function, xs: Arrays, txs: Arrays, size: int, seed: Callable[[Arrays], Arrays]
    ) -> tuple[Arrays, Arrays, Arrays, Arrays]:
        units = real_directions(xs)
        ys, aux, slopes = _pushforwards(function, xs, units)
        seed(ys)  # refuses anything but one real number
        products = []
        for t in directions(txs, size):
            h = _real_step(xs, t)
            ahead, behind = (
                _pushforwards(function, displaced(xs, s, t), units, check=False)[2] for s in (h, -h)
            )
            products.append(
                assemble(xs, [(a[0] - b[0]) / (2 * h) for a, b in zip(ahead, behind, strict=True)])
            )
        return ys, aux, assemble(xs, [slope[0] for slope in slopes]), stack(products)

    def value_and_two_pushforwards(
        self, function: Function, xs: Arrays, txs: Arrays
    ) -> tuple[Arrays, Arrays, Arrays, Arrays]:
        ys, aux, rows = _pushforwards(function, xs, [txs])
        h = _real_step(xs, txs)
        ahead, behind = (
            _pushforwards(function, displaced(xs, s, txs), [txs], check=False)[2][0] for s in (h, -h)
        )
        return ys, aux, rows[0], tuple([_like((a - b) / (2 * h), a) for a, b in zip(ahead, behind, strict=True)])


def _pushforwards(
    function: Function, xs: Arrays, along: Sequence[Arrays], check: bool = True
) -> tuple[Arrays, Arrays, list[Arrays]]:
    for x in xs:
        if x.dtype.name not in _STEP:
            raise UnsupportedError(
                f"complex_step: x has dtype {x.dtype}; float32 or float64 was expected (the imaginary part is "
                "needed for the derivative). Convert x, or use diface.AutoFiniteDiff()."
            )
    ys, aux = function(*xs)
    h = min((_STEP[x.dtype.name] for x in xs), default=1e-40) if len({x.dtype for x in xs}) < 2 else 1e-15
    rows = []
    for t in along:
        out = _analytic(function, displaced(xs, 1j * h, t))
        pairs = enumerate(zip(ys, out, strict=True))
        rows.append(tuple([_imaginary(function, xs, t, y, w, k, h) for k, (y, w) in pairs]))
    if check and along:
        _check(function, xs, along, rows)
    return ys, aux, rows


def _analytic(function: Function, zs: Arrays) -> Arrays:
    """``f`` at a complex point; losing the imaginary part on the way is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        try:
            ys, carried = function(*zs)
        except np.exceptions.ComplexWarning as error:
            raise NotDifferentiableError(
                f"complex_step: f discards the imaginary part of a complex number ({error}). {_ADVICE}"
            ) from error
        except TypeError as error:
            raise NotDifferentiableError(
                f"complex_step: f cannot be run on complex numbers ({error}). {_ADVICE}"
            ) from error
    del carried
    return ys


def _imaginary(function: Function, xs: Arrays, t: Arrays, y: Any, w: Any, k: int, h: float) -> Any:
    if np.iscomplexobj(y):
        raise NotDifferentiableError(f"complex_step: f returned {np.asarray(y).dtype} for real x. {_ADVICE}")
    if np.iscomplexobj(w):
        return _like(np.imag(w) / h, y)
    # Real although x was complex: a constant, or an imaginary part that was lost.
    s = _real_step(xs, t)
    for sign in (1, -1):
        moved = function(*displaced(xs, sign * s, t))[0][k]
        if not np.array_equal(np.asarray(moved), np.asarray(y), equal_nan=True):
            raise NotDifferentiableError(
                f"complex_step: f returned real {np.asarray(w).dtype} numbers for complex x. {_ADVICE}"
            )
    return np.zeros_like(y)


def _check(function: Function, xs: Arrays, along: Sequence[Arrays], rows: list[Arrays]) -> None:
    """One central difference along a mixture of the directions: conj, say, would flip a sign unseen."""
    weights = np.random.default_rng(0).uniform(0.5, 1.5, len(along))
    t = tuple([sum(w * v[j] for w, v in zip(weights, along, strict=True)) for j in range(len(xs))])
    t = tuple([np.asarray(v, dtype=x.dtype) for v, x in zip(t, xs, strict=True)])
    h = _real_step(xs, t)
    ahead, behind = function(*displaced(xs, h, t))[0], function(*displaced(xs, -h, t))[0]
    eps = epsilon(xs)
    for k, (a, b) in enumerate(zip(ahead, behind, strict=True)):
        terms = [w * row[k] for w, row in zip(weights, rows, strict=True)]
        exact = np.asarray(sum(terms))
        numerical = (np.asarray(a) - np.asarray(b)) / (2 * h)
        scale = sum(np.abs(term) for term in terms) + eps ** (2 / 3) * (np.abs(a) + np.abs(b) + 1)
        with np.errstate(invalid="ignore"):
            wrong = np.abs(exact - numerical) > 1e3 * eps ** (2 / 3) * (1 + np.abs(scale)) + 1e-2 * np.abs(scale)
        if np.any(wrong):
            i = int(np.argmax(wrong))
            raise NotDifferentiableError(
                f"complex_step: along one direction the complex step gives {exact.ravel()[i]:.6g}, but a central "
                f"difference {np.asarray(numerical).ravel()[i]:.6g}. {_ADVICE}"
            )


def _real_step(xs: Arrays, t: Arrays) -> float:
    size, largest = magnitude([np.asarray(x) for x in xs], [np.asarray(v) for v in t])
    if largest == 0.0 or not (np.isfinite(size) and np.isfinite(largest)):
        return 1.0
    return float(epsilon(xs) ** (1 / 3) * size / largest)


def _like(value: Any, y: Any) -> Any:
    return np.asarray(value, dtype=np.asarray(y).dtype)

