"""Callers: whose arrays an operator is called with, and must return."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from diface import _pytree
from diface._engine import ArraySpec
from diface._exchange import NUMPY, convert
from diface._registry import backend_of, guest_of

__all__ = ["Caller", "caller_of"]

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Caller:
    """Whose arrays are passed, and expected back.

    Args:
        name: The name in reports.
        into: From a NumPy array to an array of the caller's, in memory of its own.
        back: From an array of the caller's to a NumPy array.

    Example:
        >>> import numpy as np
        >>> fortran = Caller("fortran", lambda x: np.array(x, order="F"), np.asarray)
        >>> fortran.into(np.ones((2, 3))).flags.f_contiguous
        True
    """

    name: str
    into: Callable[[Array], Any]
    back: Callable[[Any], Array]

    def bring(self, tree: Any) -> Any:
        """``tree`` with its NumPy arrays turned into the caller's; numbers stay what they are."""
        leaves, spec = _pytree.flatten(tree)
        return _pytree.unflatten(spec, [self.into(x) if isinstance(x, np.ndarray) else x for x in leaves])


def caller_of(caller: str | Caller) -> Caller:
    """The caller of that name: ``"numpy"``, or an engine that has arrays of its own.

    Example:
        >>> caller_of("numpy").name
        'numpy'
    """
    if isinstance(caller, Caller):
        return caller
    if caller == "numpy":
        return Caller("numpy", lambda x: np.array(x, order="C"), np.asarray)
    guest = guest_of(backend_of(caller))
    library = guest.library
    if library is None:
        raise ValueError(
            f"callers: backend {caller!r} has no arrays of its own. "
            'Use "numpy", or an engine such as "jax" or "torch".'
        )

    def into(x: Array) -> Any:
        scope = library.scope([ArraySpec("numpy", x.shape, x.dtype.name, "cpu")])
        if scope is None:
            return library.copy(convert(np.array(x), NUMPY, library))
        with scope():  # JAX makes float64 arrays only where it is told to
            return library.copy(convert(np.array(x), NUMPY, library))

    return Caller(caller, into, lambda x: np.array(convert(x, library, NUMPY)))
