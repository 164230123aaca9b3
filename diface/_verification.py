"""``prepare(..., verify=True)``: a derivative against central differences along random directions.

Some engines are known to be wrong in silence on some programs; this is how a user finds out.
Source: A. Griewank and A. Walther, *Evaluating Derivatives*, 2nd ed., SIAM (2008), section 1.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diface import _pytree
from diface._exchange import NUMPY, PYTHON, convert, library_of
from diface._task import Task
from diface.errors import VerificationError

__all__ = ["verify"]

Vectors = list[np.ndarray[Any, Any]]
Apply = Callable[..., Any]

_DIRECTIONS = 5
# The relative disagreement that rounding and truncation explain, in double and in lower precision.
_TOLERANCE, _LOOSE_TOLERANCE = 1e-4, 5e-2
_STEP, _LOOSE_STEP = 1e-5, 1e-2
_DOUBLE = {"float64", "complex128", "float", "complex"}


def verify(task: Task, args: tuple[Any, ...], apply: Apply, result: Any) -> None:
    """Compares the derivative that ``task`` computes with a numerical one at ``args``.

    Args:
        task: The operator, function and backend.
        args: The arguments, in the caller's libraries.
        apply: ``apply(name, args, **keywords)`` runs another operator on the same function.
        result: What the operator gave at ``args``.

    Raises:
        VerificationError: They disagree: it names the worst direction and both numbers.
    """
    check = _Check(task, args, apply)
    failures = [failure for k in range(_DIRECTIONS) if (failure := check.direction(k, result)) is not None]
    if failures:
        error, k, ours, numerical, direction = max(failures, key=lambda failure: failure[0])
        shown = ", ".join(np.array2string(d, precision=3, threshold=6) for d in direction)
        raise VerificationError(
            f"{task.label}: along random direction {k} the derivative is {ours:.10g}, but central differences give "
            f"{numerical:.10g} (relative difference {error:.1e}, allowed {check.tolerance:.0e}); the direction is "
            f"{shown}. The engine is wrong on this function, or the function is not smooth there: compare with "
            "another backend, such as diface.AutoFiniteDiff()."
        )


class _Check:
    def __init__(self, task: Task, args: tuple[Any, ...], apply: Apply) -> None:
        self._task = task
        self._apply = apply
        self._leaves, self._spec = _pytree.flatten(args)
        self._slots = [task.layout.positions[i] for i in task.active]
        self._point = [_numbers(self._leaves[i]) for i in self._slots]
        double = all(spec.dtype in _DOUBLE for spec in task.active_specs)
        self.tolerance = _TOLERANCE if double else _LOOSE_TOLERANCE
        self._relative_step = _STEP if double else _LOOSE_STEP
        self._rng = np.random.default_rng(0)

    def direction(self, k: int, result: Any) -> tuple[float, int, float, float, Vectors] | None:
        """Compares along one random direction; what is wrong, if anything is."""
        direction = [self._random(x) for x in self._point]
        comparisons = [self._first_order(direction, result)]
        if self._task.operator.order == 2:
            comparisons.append(self._second_order(direction))
        worst = None
        for ours, numerical, scale in comparisons:
            if math.isnan(ours) and math.isnan(numerical):
                continue
            error = abs(ours - numerical) / max(abs(ours), abs(numerical), 1e-3 * scale, 1e-300)
            if ours != numerical and not error <= self.tolerance:
                error = math.inf if math.isnan(error) else error
                if worst is None or error > worst[0]:
                    worst = (error, k, ours, numerical, direction)
        return worst

    def _first_order(self, direction: Vectors, result: Any) -> tuple[float, float, float]:
        numerical = self._difference("value", direction)
        weights = [self._random(v) for v in numerical]
        scale = sum(float(np.sum(np.abs(w) * np.abs(v))) for w, v in zip(weights, numerical, strict=True))
        name = self._task.operator.name
        if name in ("gradient", "value_and_gradient"):
            # The very numbers that the preparation gave, not another run of the engine.
            if self._task.options.has_aux:
                result = result[0] if name == "gradient" else (result[0][0], result[1])
            g = result if name == "gradient" else result[1]
            return _inner(_leaves(g), direction), float(sum(np.sum(v.real) for v in numerical)), scale
        if self._task.calculus.reverse:
            back = self._call("pullback", self._args(self._point), cotangent=self._like_value(weights))
            return _inner(_leaves(back), direction), _inner(weights, numerical), scale
        forward = self._call("pushforward", self._args(self._point), tangent=self._tangent(direction))
        return _inner(weights, _inexact_leaves(forward)), _inner(weights, numerical), scale

    def _second_order(self, direction: Vectors) -> tuple[float, float, float]:
        args = self._args(self._point)
        if self._task.operator.scalar_in:
            numerical = self._difference("derivative", direction)
            # d/dt of the derivative at x + t v is the second derivative times v.
            factor = float(np.sum(direction[0]))
            ours = [factor * v for v in _inexact_leaves(self._call("second_derivative", args))]
        else:
            numerical = self._difference("gradient", direction)
            ours = _leaves(self._call("hvp", args, tangent=self._tangent(direction)))
        weights = [self._random(v) for v in numerical]
        scale = sum(float(np.sum(np.abs(w) * np.abs(v))) for w, v in zip(weights, numerical, strict=True))
        return _inner(weights, ours), _inner(weights, numerical), scale

    def _difference(self, name: str, direction: Vectors) -> Vectors:
        """The central difference of an operator's result along ``direction``."""
        size = max((float(np.max(np.abs(x))) for x in self._point if x.size), default=1.0)
        h = self._relative_step * max(size, 1.0)
        ends = []
        for sign in (1, -1):
            moved = [x + sign * h * v for x, v in zip(self._point, direction, strict=True)]
            ends.append(_inexact_leaves(self._call(name, self._args(moved))))
        return [(a - b) / (2 * h) for a, b in zip(*ends, strict=True)]

    def _call(self, name: str, args: tuple[Any, ...], **keywords: Any) -> Any:
        result = self._apply(name, args, **keywords)
        return result[0] if self._task.options.has_aux else result

    def _random(self, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        v = self._rng.standard_normal(like.shape)
        return np.asarray(v + 1j * self._rng.standard_normal(like.shape) if like.dtype.kind == "c" else v)

    def _args(self, point: Vectors) -> tuple[Any, ...]:
        leaves = list(self._leaves)
        for i, x in zip(self._slots, point, strict=True):
            leaves[i] = _like(x, self._leaves[i])
        args: tuple[Any, ...] = _pytree.unflatten(self._spec, leaves)
        return args

    def _tangent(self, direction: Vectors) -> Any:
        return self._task.like_x(
            [_like(v, self._leaves[i]) for i, v in zip(self._slots, direction, strict=True)]
        )

    def _like_value(self, weights: Vectors) -> Any:
        leaves, spec = _pytree.flatten(self._call("value", self._args(self._point)))
        remaining = iter(weights)
        return _pytree.unflatten(
            spec, [_like(next(remaining), leaf) if _is_inexact(leaf) else leaf for leaf in leaves]
        )


def _like(x: np.ndarray[Any, Any], leaf: Any) -> Any:
    """The numbers ``x`` in the library and dtype of ``leaf``."""
    library = library_of(leaf)
    assert library is not None
    if library is PYTHON:
        return x.item()
    array = np.asarray(x).astype(library.describe(leaf).dtype)
    return convert(array, NUMPY, library)


def _numbers(leaf: Any) -> np.ndarray[Any, Any]:
    library = library_of(leaf)
    assert library is not None
    array = np.asarray(convert(leaf, library, NUMPY))
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _is_inexact(leaf: Any) -> bool:
    library = library_of(leaf)
    return library is not None and library.is_inexact(leaf)


def _leaves(tree: Any) -> Vectors:
    return [_numbers(leaf) for leaf in _pytree.flatten(tree)[0] if library_of(leaf) is not None]


def _inexact_leaves(tree: Any) -> Vectors:
    return [_numbers(leaf) for leaf in _pytree.flatten(tree)[0] if _is_inexact(leaf)]


def _inner(a: Sequence[Any], b: Sequence[Any]) -> float:
    return float(sum(np.sum((np.conj(x) * y).real) for x, y in zip(a, b, strict=True)))
