"""The pushforward (Jacobian-vector product): forward mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diface._preparation import Preparation, apply
from diface._specs import Backend

__all__ = ["pushforward", "value_and_pushforward", "value_and_pushforward_function"]


def pushforward(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    tangent: Any,
    batched: bool = False,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The pushforward of a tangent: the directional derivative, by forward mode.

    ``ty = J(x) tx``

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``(ty, aux)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.
        tangent: The tangent, like ``x`` (a tuple of them for a tuple of ``argnums``).
        batched: The vector has a leading batch axis in every leaf, and so has the result.

    Returns:
        ``ty``, like ``y = f(x)``.

    Shapes:
        ``tangent: x.shape`` → ``ty: y.shape``; with ``batched``, ``(B, *x.shape)`` → ``(B, *y.shape)``.

    Raises:
        NotDifferentiableError: A differentiated argument is no floating-point array.
        ArgumentMismatchError: The vector does not have the structure, shapes and dtypes expected.

    Example:
        >>> import numpy as np, diface
        >>> pushforward(lambda x: x**2, "finite_diff", np.array([1.0, 2.0]), tangent=np.array([1.0, 0.0])).round(6)
        array([2., 0.])

    Source:
        R. Wengert, *A simple automatic derivative evaluation program*, CACM 7 (1964).
    """
    return apply("pushforward", f, backend, args, argnums, has_aux, prep, tangent, batched)


def value_and_pushforward(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    tangent: Any,
    batched: bool = False,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The value, and the pushforward of a tangent.

    ``(y, ty) = (f(x), J(x) tx)``

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``((y, aux), ty)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.
        tangent: The tangent, like ``x`` (a tuple of them for a tuple of ``argnums``).
        batched: The vector has a leading batch axis in every leaf, and so has the result.

    Returns:
        ``(y, ty)``, both like ``f(x)``.

    Shapes:
        ``tangent: x.shape`` → ``ty: y.shape``; with ``batched``, ``(B, *x.shape)`` → ``(B, *y.shape)``.

    Raises:
        NotDifferentiableError: A differentiated argument is no floating-point array.
        ArgumentMismatchError: The vector does not have the structure, shapes and dtypes expected.

    Example:
        >>> import diface
        >>> y, ty = value_and_pushforward(lambda x: x * x, "finite_diff", 3.0, tangent=2.0)
        >>> round(y, 6), round(ty, 6)
        (9.0, 12.0)

    Source:
        R. Wengert, *A simple automatic derivative evaluation program*, CACM 7 (1964).
    """
    return apply("value_and_pushforward", f, backend, args, argnums, has_aux, prep, tangent, batched)


def value_and_pushforward_function(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The value, and the pushforward as a function of the tangent.

    ``(y, push)`` with ``push(tx) = J(x) tx``

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``((y, aux), push)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.

    Returns:
        ``(y, push)``; ``push(tangent)`` gives ``ty`` like ``y``, however often it is called.

    Shapes:
        ``push: x.shape → y.shape``.

    Raises:
        NotDifferentiableError: A differentiated argument is no floating-point array.

    Example:
        >>> import diface
        >>> y, push = value_and_pushforward_function(lambda x: x * x, "finite_diff", 3.0)
        >>> round(push(1.0), 6), round(push(2.0), 6)
        (6.0, 12.0)

    Source:
        R. Wengert, *A simple automatic derivative evaluation program*, CACM 7 (1964).
    """
    return apply("value_and_pushforward_function", f, backend, args, argnums, has_aux, prep)
