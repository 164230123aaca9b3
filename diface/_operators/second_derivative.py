"""The second derivative of a function of one real number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diface._preparation import Preparation, apply
from diface._specs import Backend

__all__ = ["second_derivative", "value_derivative_and_second_derivative"]


def second_derivative(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The second derivative of a function of one real number.

    ``d²y = d²f/dx²``

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``(d²y, aux)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.

    Returns:
        ``d²y``, with the structure and shapes of ``y``.

    Shapes:
        ``x: ()`` → ``d²y: y.shape`` for each leaf.

    Raises:
        NotDifferentiableError: A differentiated argument is no floating-point array.
        NotScalarError: ``x`` is anything but one real number.

    Example:
        >>> import diface
        >>> round(second_derivative(lambda x: x * x * x, "finite_diff", 2.0), 4)
        12.0

    Source:
        The pushforward of the pushforward of 1; Griewank and Walther (2008), chapter 13.
    """
    return apply("second_derivative", f, backend, args, argnums, has_aux, prep)


def value_derivative_and_second_derivative(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The value, derivative and second derivative of a function of one real number.

    ``(y, dy, d²y) = (f(x), df/dx, d²f/dx²)``

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``((y, aux), dy, d²y)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.

    Returns:
        ``(y, dy, d²y)``, each with the structure and shapes of ``y``.

    Shapes:
        ``x: ()`` → each ``y.shape``.

    Raises:
        NotDifferentiableError: A differentiated argument is no floating-point array.
        NotScalarError: ``x`` is anything but one real number.

    Example:
        >>> import diface
        >>> y, dy, d2y = value_derivative_and_second_derivative(lambda x: x * x, "finite_diff", 3.0)
        >>> round(y, 4), round(dy, 4), round(d2y, 4)
        (9.0, 6.0, 2.0)

    Source:
        The pushforward of the pushforward of 1; Griewank and Walther (2008), chapter 13.
    """
    return apply("value_derivative_and_second_derivative", f, backend, args, argnums, has_aux, prep)
