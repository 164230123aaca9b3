"""One interface to the automatic-differentiation engines of Python, and the place where they meet."""

from __future__ import annotations

from diface import errors
from diface._differentiate_with import DifferentiateWith, differentiate_with
from diface._exchange import array_namespace
from diface._operators import (
    derivative,
    gradient,
    gradient_and_hvp,
    hessian,
    hvp,
    jacobian,
    pullback,
    pushforward,
    second_derivative,
    value_and_derivative,
    value_and_gradient,
    value_and_jacobian,
    value_and_pullback,
    value_and_pullback_function,
    value_and_pushforward,
    value_and_pushforward_function,
    value_derivative_and_second_derivative,
    value_gradient_and_hessian,
)
from diface._preparation import Preparation, prepare
from diface._registry import BackendInfo, backends, is_available
from diface._specs import (
    AutoAutograd,
    AutoComplexStep,
    AutoFiniteDiff,
    AutoJAX,
    AutoTorch,
    Backend,
)

__version__ = "0.1.0"

__all__ = [
    # engines
    "Backend",
    "AutoAutograd",
    "AutoComplexStep",
    "AutoFiniteDiff",
    "AutoJAX",
    "AutoTorch",
    "BackendInfo",
    "backends",
    "is_available",
    # operators
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
    # mixing engines
    "DifferentiateWith",
    "differentiate_with",
    # preparation
    "Preparation",
    "prepare",
    # arrays and errors
    "array_namespace",
    "errors",
]
