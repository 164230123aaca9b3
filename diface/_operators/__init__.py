"""The public operators. All have one form: ``op(f, backend, *args, argnums=0, has_aux=False, prep=None)``."""

from diface._operators.derivative import derivative, value_and_derivative
from diface._operators.gradient import gradient, value_and_gradient
from diface._operators.hessian import hessian, value_gradient_and_hessian
from diface._operators.hvp import gradient_and_hvp, hvp
from diface._operators.jacobian import jacobian, value_and_jacobian
from diface._operators.pullback import pullback, value_and_pullback, value_and_pullback_function
from diface._operators.pushforward import (
    pushforward,
    value_and_pushforward,
    value_and_pushforward_function,
)
from diface._operators.second_derivative import (
    second_derivative,
    value_derivative_and_second_derivative,
)

__all__ = [
    "derivative",
    "gradient",
    "gradient_and_hvp",
    "hessian",
    "hvp",
    "jacobian",
    "pullback",
    "pushforward",
    "second_derivative",
    "value_and_derivative",
    "value_and_gradient",
    "value_and_jacobian",
    "value_and_pullback",
    "value_and_pullback_function",
    "value_and_pushforward",
    "value_and_pushforward_function",
    "value_derivative_and_second_derivative",
    "value_gradient_and_hessian",
]
