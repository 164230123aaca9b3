"""The pullback (vector-Jacobian product): reverse mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diface._preparation import Preparation, apply
from diface._specs import Backend

__all__ = ["pullback", "value_and_pullback", "value_and_pullback_function"]


def pullback(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    cotangent: Any,
    batched: bool = False,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The pullback of a cotangent, by reverse mode.

    ``tx = J(x)ᵀ ty``: the adjoint for the inner product ``Re⟨a, b⟩``, so ``⟨ty, J tx⟩ = ⟨Jᵀ ty, tx⟩``.

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``(tx, aux)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.
        cotangent: The cotangent, like ``f(x)``.
        batched: The vector has a leading batch axis in every leaf, and so has the result.

    Returns:
        ``tx``, like ``x``.

    Shapes:
        ``cotangent: y.shape`` → ``tx: x.shape``; with ``batched``, ``(B, *y.shape)`` → ``(B, *x.shape)``.

    Raises:
        NotDifferentiableError: A differentiated argument is no floating-point array.
        ArgumentMismatchError: The vector does not have the structure, shapes and dtypes expected.

    Example:
        >>> import numpy as np, diface
        >>> pullback(lambda x: x**2, "finite_diff", np.array([1.0, 2.0]), cotangent=np.array([1.0, 10.0])).round(5)
        array([ 2., 40.])

    Source:
        A. Griewank and A. Walther, *Evaluating Derivatives*, 2nd ed., SIAM (2008), chapter 3.
    """
    return apply("pullback", f, backend, args, argnums, has_aux, prep, cotangent, batched)


def value_and_pullback(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    cotangent: Any,
    batched: bool = False,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The value, and the pullback of a cotangent.

    ``(y, tx) = (f(x), J(x)ᵀ ty)``

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``((y, aux), tx)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.
        cotangent: The cotangent, like ``f(x)``.
        batched: The vector has a leading batch axis in every leaf, and so has the result.

    Returns:
        ``(y, tx)``, with ``tx`` like ``x``.

    Shapes:
        ``cotangent: y.shape`` → ``tx: x.shape``; with ``batched``, ``(B, *y.shape)`` → ``(B, *x.shape)``.

    Raises:
        NotDifferentiableError: A differentiated argument is no floating-point array.
        ArgumentMismatchError: The vector does not have the structure, shapes and dtypes expected.

    Example:
        >>> import diface
        >>> y, tx = value_and_pullback(lambda x: x * x, "finite_diff", 3.0, cotangent=2.0)
        >>> round(y, 6), round(tx, 6)
        (9.0, 12.0)

    Source:
        A. Griewank and A. Walther, *Evaluating Derivatives*, 2nd ed., SIAM (2008), chapter 3.
    """
    return apply("value_and_pullback", f, backend, args, argnums, has_aux, prep, cotangent, batched)


def value_and_pullback_function(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The value, and the pullback as a function of the cotangent; ``f`` runs once.

    ``(y, pull)`` with ``pull(ty) = J(x)ᵀ ty``

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``((y, aux), pull)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.

    Returns:
        ``(y, pull)``; ``pull(cotangent)`` gives ``tx`` like ``x``, however often it is called.

    Shapes:
        ``pull: y.shape → x.shape``.

    Raises:
        NotDifferentiableError: A differentiated argument is no floating-point array.
        MutationError: (from ``pull``) an array that it needs was changed in place since.

    Example:
        >>> import diface
        >>> y, pull = value_and_pullback_function(lambda x: x * x, "finite_diff", 3.0)
        >>> round(pull(1.0), 6), round(pull(2.0), 6)
        (6.0, 12.0)

    Source:
        A. Griewank and A. Walther, *Evaluating Derivatives*, 2nd ed., SIAM (2008), chapter 3.
    """
    return apply("value_and_pullback_function", f, backend, args, argnums, has_aux, prep)
