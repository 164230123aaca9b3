"""From a function's value, Jacobian and Hessian in closed form to everything that is expected of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from diface.testing._scenario import Scenario, Tolerance

__all__ = ["BRIEF", "V", "array_scenario", "batch_like", "cast", "pattern"]

V = np.arange(1.0, 7.0)

BATCH = 4
"""Different from every axis of the scenarios, so that a wrong axis shows."""

BRIEF = (
    "value_and_gradient",
    "value_and_derivative",
    "value_and_jacobian",
    "value_and_pushforward",
    "value_and_pullback",
    "batched_pullback",
    "gradient_and_hvp",
    "value_gradient_and_hessian",
    "value_derivative_and_second_derivative",
)
"""One operator for each derivative: enough for a second precision, and half the compilations."""

_PATTERN = np.array([-3.0, 4.0, 0.5, -1.25, 2.0, 0.75, -2.5])


def pattern(shape: tuple[int, ...], shift: int = 0, dtype: str = "float64") -> Any:
    """Numbers of both signs without a symmetry, the same each time."""
    values: Any = np.resize(np.roll(_PATTERN, shift), shape) + 0.125 * shift
    if np.dtype(dtype).kind == "c":
        values = values + 1j * np.resize(np.roll(_PATTERN, shift + 2), shape)
    return values.astype(dtype)


def batch_like(first: Any, dtype: str) -> Any:
    """A batch of vectors, of which ``first`` is the first."""
    first = np.asarray(first, dtype)
    return np.stack([first, *(pattern(first.shape, shift, dtype) for shift in range(1, BATCH))])


def cast(value: Any, dtype: str, kind: str = "array") -> Any:
    """``value`` in its precision; numbers as the caller's kind has them."""
    result = np.asarray(value).astype(dtype)
    if result.ndim == 0 and kind == "python":
        return result.item()
    if result.ndim == 0 and kind == "scalar":
        return result[()]
    return result


def _contract(matrix: Any, vector: Any, axes: int) -> Any:
    return np.tensordot(matrix, vector, axes)


def _stack_over(function: Callable[[Any], Any], batch: Any) -> Any:
    return np.stack([np.asarray(function(v)) for v in batch])


def array_scenario(
    name: str,
    f: Callable[..., Any],
    x: Any,
    dtype: str,
    *,
    value: Callable[..., Any],
    jacobian: Callable[..., Any],
    hessian: Callable[..., Any] | None = None,
    second: Callable[..., Any] | None = None,
    constants: tuple[Any, ...] = (),
    prepare: float = 0.0,
    tangent: Any = None,
    cotangent: Any = None,
    kind: str = "array",
    needs: tuple[str, ...] = (),
    tolerance: Tolerance = "exact",
    only: tuple[str, ...] = (),
    differences: bool = False,
) -> Scenario:
    """A scenario of one differentiated array ``x`` and one array as value.

    Args:
        name: The scenario's name; the dtype is added.
        f: The function, of ``x`` and the constants.
        x: Where it is differentiated.
        dtype: The precision.
        value: The value by NumPy, of the same arguments.
        jacobian: The matrix ``J`` of shape ``y.shape + x.shape``.
        hessian: For a scalar value, the matrix ``H`` of shape ``x.shape + x.shape``.
        second: For a scalar ``x``, the second derivative.
        constants: Further arguments, not differentiated.
        prepare: What the arguments are multiplied with to prepare; the constants too, by 3 if zero.
        tangent: A tangent, if not ``-x``.
        cotangent: A cotangent, if not the usual one.
        kind: ``"array"``, ``"python"`` or ``"scalar"``: what numbers come as.
        needs: As in ``Scenario``.
        tolerance: As in ``Scenario``.
        only: As in ``Scenario``.
        differences: As in ``Scenario``.
    """
    wide = "complex128" if np.dtype(dtype).kind == "c" else "float64"
    # Everything is computed in double precision, at the rounded arguments.
    at = tuple(_wide(a, dtype, wide) for a in (x, *constants))
    x = at[0]
    y, J = np.asarray(value(*at)), np.asarray(jacobian(*at))
    t = _wide(-x if tangent is None else tangent, dtype, wide)
    c = pattern(y.shape, 0, str(y.dtype)) if cotangent is None else cotangent
    c = np.asarray(c).astype(dtype if y.dtype.kind == np.dtype(dtype).kind else wide).astype(y.dtype)
    ts, cs = batch_like(t, wide), batch_like(c, str(y.dtype))

    def push(v: Any) -> Any:
        return _contract(J, v, x.ndim)

    def pull(v: Any) -> Any:
        return _contract(v, np.conj(J), y.ndim)

    expected = {
        "value": y, "jacobian": J, "pushforward": push(t), "pullback": pull(c),
        "batched_pushforward": _stack_over(push, ts), "batched_pullback": _stack_over(pull, cs),
    }
    if x.ndim == 0:
        expected["derivative"] = J
    if second is not None:
        expected["second_derivative"] = d2 = np.asarray(second(*at))
        hessian = hessian or (None if y.ndim else lambda *_: d2)
    if y.ndim == 0 and y.dtype.kind == "f":
        expected["gradient"] = J
        if hessian is not None:
            expected["hessian"] = H = np.asarray(hessian(*at))
            expected["hvp"] = _contract(H, t, x.ndim)
            expected["batched_hvp"] = _stack_over(lambda v: _contract(H, v, x.ndim), ts)
    typical = (x * prepare, *(k * (prepare or 3) for k in constants))
    return Scenario(
        f"{name}-{dtype}" if kind != "python" else f"{name}-python",
        f,
        _cast_all((x, *constants), dtype, kind),
        {key: cast(part, dtype, kind) for key, part in expected.items()},
        prepare_args=_cast_all(typical, dtype, kind),
        tangent=cast(t, dtype, kind),
        cotangent=cast(c, dtype, kind),
        tangents=cast(ts, dtype),
        cotangents=cast(cs, dtype),
        dtype=dtype,
        needs=frozenset(needs),
        tolerance=tolerance,
        only=only,
        differences=differences,
    )


def _wide(x: Any, dtype: str, wide: str) -> Any:
    x = np.asarray(x)
    return x.astype(dtype).astype(wide) if x.dtype.kind in "fc" else x


def _cast_all(args: tuple[Any, ...], dtype: str, kind: str) -> tuple[Any, ...]:
    return tuple(cast(a, dtype, kind) if np.asarray(a).dtype.kind in "fc" else a for a in args)
