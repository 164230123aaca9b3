"""The Hessian of a scalar function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diface._preparation import Preparation, apply
from diface._specs import Backend

__all__ = ["hessian", "value_gradient_and_hessian"]


def hessian(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The Hessian of a scalar function.

    ``H[i, j] = ∂²f / ∂x[i] ∂x[j]``, forward over reverse where the engine has both.

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``(H, aux)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.

    Returns:
        ``H``: the structure of ``x``, and in each place again.

    Shapes:
        ``x.shape + x.shape`` for each pair of leaves.

    Raises:
        NotScalarError: ``f`` returns anything but one real number.
        NotDifferentiableError: A differentiated argument is no floating-point array.

    Example:
        >>> import numpy as np, diface
        >>> hessian(lambda x: x[0] * x[1], "finite_diff", np.array([1.0, 2.0])).round(3) + 0.0
        array([[0., 1.],
               [1., 0.]])

    Source:
        B. Pearlmutter, *Fast exact multiplication by the Hessian*, Neural Computation 6 (1994).
    """
    return apply("hessian", f, backend, args, argnums, has_aux, prep)


def value_gradient_and_hessian(
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    prep: Preparation | None = None,
) -> Any:
    """The value, the gradient and the Hessian of a scalar function.

    ``(y, g, H) = (f(x), ∇f(x), ∇²f(x))``

    Args:
        f: The function; it receives the backend's own arrays.
        backend: The engine, as an instance (``diface.AutoJAX()``) or a short name (``"jax"``).
        args: The arguments of ``f``: pytrees of arrays of any library, or Python floats.
        argnums: Which arguments to differentiate: an integer, or a tuple of them (then the result
            is a tuple as well). The others are constants.
        has_aux: ``f`` returns ``(y, aux)``, and ``((y, aux), g, H)`` is returned.
        prep: What :func:`diface.prepare` made for this operator, ``f`` and kind of arguments.

    Returns:
        ``(y, g, H)``.

    Shapes:
        ``y: ()``, ``g: x.shape``, ``H: x.shape + x.shape`` for each pair of leaves.

    Raises:
        NotScalarError: ``f`` returns anything but one real number.
        NotDifferentiableError: A differentiated argument is no floating-point array.

    Example:
        >>> import numpy as np, diface
        >>> y, g, H = value_gradient_and_hessian(lambda x: x * x, "finite_diff", 3.0)
        >>> round(y, 4), round(g, 4), round(H, 4)
        (9.0, 6.0, 2.0)

    Source:
        B. Pearlmutter, *Fast exact multiplication by the Hessian*, Neural Computation 6 (1994).
    """
    return apply("value_gradient_and_hessian", f, backend, args, argnums, has_aux, prep)
