"""The Jacobian of a function of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diface._preparation import Preparation, apply
from diface._specs import Backend

__all__ = ["jacobian", "value_and_jacobian"]


def jacobian(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The Jacobian: the derivative of each output with respect to each input.

    ``J[i, j] = ∂y[i] / ∂x[j]``, by the mode that takes fewer sweeps, unless one is forced.

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``(J, aux)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.

    Returns:
        ``J``: the structure of ``y``, and in each place the structure of ``x``.

    Shapes:
        ``y.shape + x.shape`` for each pair of leaves; the dtype of ``y``.

    Raises:
        NotDifferentiableError: A differentiated argument is no floating-point array.
        UnsupportedError: ``f`` is a non-analytic function of complex numbers.

    Example:
        >>> import numpy as np, diface
        >>> jacobian(lambda x: x[1:] * x[:-1], "finite_diff", np.array([1.0, 2.0, 3.0])).round(6)
        array([[2., 1., 0.],
               [0., 3., 2.]])

    Source:
        Griewank and Walther (2008), chapter 8.
    """
    return apply("jacobian", f, backend, args, argnums, has_aux, prep)


def value_and_jacobian(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The value and the Jacobian of a function.

    ``(y, J)`` with ``J[i, j] = ∂y[i] / ∂x[j]``

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``((y, aux), J)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.

    Returns:
        ``(y, J)``; ``J`` has the structure of ``y``, and in each place the structure of ``x``.

    Shapes:
        ``y.shape + x.shape`` for each pair of leaves.

    Raises:
        NotDifferentiableError: A differentiated argument is no floating-point array.
        UnsupportedError: ``f`` is a non-analytic function of complex numbers.

    Example:
        >>> import numpy as np, diface
        >>> y, J = value_and_jacobian(lambda x: x[:1] * x[1], "finite_diff", np.array([2.0, 3.0]))
        >>> y.round(6), J.round(6)
        (array([6.]), array([[3., 2.]]))

    Source:
        Griewank and Walther (2008), chapter 8.
    """
    return apply("value_and_jacobian", f, backend, args, argnums, has_aux, prep)
