"""The gradient of a scalar function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diface._preparation import Preparation, apply
from diface._specs import Backend

__all__ = ["gradient", "value_and_gradient"]


def gradient(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The gradient of a scalar function.

    ``g = ∇f(x)``, for complex x the direction of steepest ascent: ``∇|z|² = 2z``.

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``(g, aux)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.

    Returns:
        ``g``, like ``x``: same structure, shapes, dtypes, library and device.

    Shapes:
        ``x: any`` → ``g: x.shape``; ``f(x)`` is 0-d or has one element.

    Raises:
        NotScalarError: ``f`` returns anything but one real number.
        NotDifferentiableError: A differentiated argument is no floating-point array.

    Example:
        >>> import numpy as np, diface
        >>> gradient(lambda x: (x**2).sum(), "finite_diff", np.array([1.0, 2.0])).round(6)
        array([2., 4.])

    Source:
        A. Griewank and A. Walther, *Evaluating Derivatives*, 2nd ed., SIAM (2008), chapter 3.
    """
    return apply("gradient", f, backend, args, argnums, has_aux, prep)


def value_and_gradient(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The value and the gradient of a scalar function, from one run of it where the engine can.

    ``(y, g) = (f(x), ∇f(x))``

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``((y, aux), g)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.

    Returns:
        ``(y, g)``, with ``g`` like ``x``.

    Shapes:
        ``x: any`` → ``y: ()`` or one element, ``g: x.shape``.

    Raises:
        NotScalarError: ``f`` returns anything but one real number.
        NotDifferentiableError: A differentiated argument is no floating-point array.

    Example:
        >>> import numpy as np, diface
        >>> y, g = value_and_gradient(lambda x: x * x, "finite_diff", 3.0)
        >>> round(y, 6), round(g, 6)
        (9.0, 6.0)

    Source:
        A. Griewank and A. Walther, *Evaluating Derivatives*, 2nd ed., SIAM (2008), chapter 3.
    """
    return apply("value_and_gradient", f, backend, args, argnums, has_aux, prep)
