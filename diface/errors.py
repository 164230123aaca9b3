"""Every error and warning of diface, each also a subclass of the built-in that a caller would expect.

The form of a message is ``operator(backend): what is wrong, what came, what was expected. One action.``
"""

from __future__ import annotations

__all__ = [
    "ArgumentMismatchError",
    "BackendNotInstalledError",
    "DifaceError",
    "MissedCallWarning",
    "MutationError",
    "NotDifferentiableError",
    "NotScalarError",
    "PerformanceWarning",
    "PreparationMismatchError",
    "UnknownBackendError",
    "UnsupportedError",
    "UntracedOutputWarning",
    "UnusedRuleWarning",
    "VerificationError",
]


class DifaceError(Exception):
    """Base class of all errors that diface raises itself."""


class UnknownBackendError(DifaceError, ValueError):
    """No backend of that name is registered."""


class BackendNotInstalledError(DifaceError, ImportError):
    """The backend is known, but the engine that it needs is not installed."""


class UnsupportedError(DifaceError, NotImplementedError):
    """The request is well formed, but this engine cannot serve it."""


class ArgumentMismatchError(DifaceError, ValueError):
    """A tangent, cotangent or option does not fit the arguments of the function."""


class PreparationMismatchError(DifaceError, ValueError):
    """A preparation was called with arguments other than those it was made for."""


class NotScalarError(DifaceError, ValueError):
    """An operator that needs one number was given several."""


class NotDifferentiableError(DifaceError, TypeError):
    """An argument or a result is of a kind that has no derivative (an integer, say)."""


class MutationError(DifaceError, RuntimeError):
    """An array was changed in place where its old value was still needed."""


class VerificationError(DifaceError, ArithmeticError):
    """A derivative disagrees with a numerical one."""


class PerformanceWarning(UserWarning):
    """The result is exact, but costs more than a user would expect."""


class UntracedOutputWarning(UserWarning):
    """The function returned a plain Python number, so its derivative is zero."""


class UnusedRuleWarning(UserWarning):
    """A rule of a policy matched no call."""


class MissedCallWarning(UserWarning):
    """A call that a rule speaks of could not be intercepted."""
