"""The derivative of a function of one real number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diface._preparation import Preparation, apply
from diface._specs import Backend

__all__ = ["derivative", "value_and_derivative"]


def derivative(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The derivative of a function of one real number.

    ``dy = df/dx``

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``(dy, aux)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.

    Returns:
        ``dy``, with the structure and shapes of ``y``.

    Shapes:
        ``x: ()`` → ``dy: y.shape`` for each leaf.

    Raises:
        NotDifferentiableError: A differentiated argument is no floating-point array.
        NotScalarError: ``x`` is anything but one real number.

    Example:
        >>> import diface, math
        >>> round(derivative(math.sin, "finite_diff", 0.0), 6)
        1.0

    Source:
        The pushforward of 1; Griewank and Walther (2008), chapter 3.
    """
    return apply("derivative", f, backend, args, argnums, has_aux, prep)


def value_and_derivative(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The value and the derivative of a function of one real number.

    ``(y, dy) = (f(x), df/dx)``

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``((y, aux), dy)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.

    Returns:
        ``(y, dy)``, both with the structure and shapes of ``y``.

    Shapes:
        ``x: ()`` → ``y``, ``dy: y.shape`` for each leaf.

    Raises:
        NotDifferentiableError: A differentiated argument is no floating-point array.
        NotScalarError: ``x`` is anything but one real number.

    Example:
        >>> import diface
        >>> y, dy = value_and_derivative(lambda x: x * x, "finite_diff", 2.0)
        >>> round(y, 6), round(dy, 6)
        (4.0, 4.0)

    Source:
        The pushforward of 1; Griewank and Walther (2008), chapter 3.
    """
    return apply("value_and_derivative", f, backend, args, argnums, has_aux, prep)
