"""Products of the Hessian with vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diface._preparation import Preparation, apply
from diface._specs import Backend

__all__ = ["hvp", "gradient_and_hvp"]


def hvp(
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
    """The Hessian of a scalar function times a vector, without forming the Hessian.

    ``Hv = ∇²f(x) v``, forward over reverse where the engine has both.

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``(Hv, aux)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.
        tangent: The tangent, like ``x`` (a tuple of them for a tuple of ``argnums``).
        batched: The vector has a leading batch axis in every leaf, and so has the result.

    Returns:
        ``Hv``, like ``x``.

    Shapes:
        ``tangent: x.shape`` → ``Hv: x.shape``; with ``batched``, ``(B, *x.shape)`` → ``(B, *x.shape)``.

    Raises:
        NotScalarError: ``f`` returns anything but one real number.
        NotDifferentiableError: A differentiated argument is no floating-point array.
        ArgumentMismatchError: The vector does not have the structure, shapes and dtypes expected.

    Example:
        >>> import numpy as np, diface
        >>> hvp(lambda x: (x**3).sum(), "finite_diff", np.array([1.0, 2.0]), tangent=np.ones(2)).round(3)
        array([ 6., 12.])

    Source:
        B. Pearlmutter, *Fast exact multiplication by the Hessian*, Neural Computation 6 (1994).
    """
    return apply("hvp", f, backend, args, argnums, has_aux, prep, tangent, batched)


def gradient_and_hvp(
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
    """The gradient of a scalar function, and its Hessian times a vector.

    ``(g, Hv) = (∇f(x), ∇²f(x) v)``

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``((g, aux), Hv)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.
        tangent: The tangent, like ``x`` (a tuple of them for a tuple of ``argnums``).
        batched: The vector has a leading batch axis in every leaf, and so has the result.

    Returns:
        ``(g, Hv)``, both like ``x``.

    Shapes:
        ``tangent: x.shape`` → ``g: x.shape``, ``Hv: x.shape`` (with ``batched``, ``(B, *x.shape)``).

    Raises:
        NotScalarError: ``f`` returns anything but one real number.
        NotDifferentiableError: A differentiated argument is no floating-point array.
        ArgumentMismatchError: The vector does not have the structure, shapes and dtypes expected.

    Example:
        >>> import numpy as np, diface
        >>> g, Hv = gradient_and_hvp(lambda x: (x**2).sum(), "finite_diff", np.ones(2), tangent=np.ones(2))
        >>> g.round(4), Hv.round(4)
        (array([2., 2.]), array([2., 2.]))

    Source:
        B. Pearlmutter, *Fast exact multiplication by the Hessian*, Neural Computation 6 (1994).
    """
    return apply("gradient_and_hvp", f, backend, args, argnums, has_aux, prep, tangent, batched)
