"""What the author of an engine needs: see ``tests/toy_engine.py`` for a whole one on a page.

An engine is a module with a subclass of :class:`Guest` (and of :class:`ArrayLibrary`, if it has
arrays of its own), named in the entry-point group ``diface.backends`` (``diface.arrays``). The class
has an attribute ``specification``: the :class:`diface.Backend` dataclass that describes it.
"""

from __future__ import annotations

from diface._algebra import (
    Batched,
    ForeignFunction,
    Joint,
    Pullback,
    Pushforward,
    WithGradient,
    freeze,
    gradient_suffices,
    is_inexact,
)
from diface._engine import ArrayLibrary, Arrays, ArraySpec, Function, Guest, Host, PullbackMap, Results
from diface._exchange import NUMPY, Crossing, NumpyLibrary, convert, ledger, library_of, writable_alias
from diface._execution import KeptPullback, call, call_keeping
from diface._functions import Run
from diface._preparation import cache_clear, cache_info
from diface._specs import Backend

__all__ = [
    "NUMPY",
    "ArrayLibrary",
    "ArraySpec",
    "Arrays",
    "Backend",
    "Batched",
    "Crossing",
    "ForeignFunction",
    "Function",
    "Guest",
    "Host",
    "Joint",
    "KeptPullback",
    "NumpyLibrary",
    "Pullback",
    "PullbackMap",
    "Pushforward",
    "Results",
    "Run",
    "WithGradient",
    "cache_clear",
    "cache_info",
    "call",
    "call_keeping",
    "convert",
    "freeze",
    "gradient_suffices",
    "is_inexact",
    "ledger",
    "library_of",
    "writable_alias",
]
