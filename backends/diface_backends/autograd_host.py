"""HIPS autograd as a host: one primitive whose rules name only the algebra of guest functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as autograd_numpy
import numpy as np
from autograd.builtins import tuple as traced_tuple
from autograd.core import JVPNode
from autograd.extend import defjvp_argnums, defvjp_argnums, primitive
from autograd.tracer import isbox

from diface.extend import (
    NUMPY,
    ForeignFunction,
    Host,
    KeptPullback,
    Pullback,
    Pushforward,
    call,
    call_keeping,
    freeze,
    is_inexact,
)

anp: Any = autograd_numpy  # made at run time: no checker can know what is in it

__all__ = ["AutogradHost"]


class AutogradHost(Host):
    """autograd's boxes as arguments of a foreign function."""

    def follows(self, x: Any) -> bool:
        return isbox(x)

    def foreign_call(self, function: ForeignFunction, arrays: Sequence[Any]) -> list[Any]:
        function = freeze(function, [isbox(x) for x in arrays])
        reverse = any(isbox(x) and not isinstance(x._node, JVPNode) for x in arrays)
        outs = _foreign(_Call(function, reverse), *arrays)
        return [outs[i] for i in range(len(outs))]


class _Call:
    """One call of a foreign function, and what it leaves behind for its derivative.

    Attributes:
        function: The function.
        wanted: Whether the pullback should be kept.
        pull: The kept pullback, once the call has run.
        shortcut: Gives the call's value from what an earlier call kept.
    """

    def __init__(
        self, function: ForeignFunction, wanted: bool, shortcut: Callable[[Sequence[Any]], Any] | None = None
    ) -> None:
        self.function = function
        self.wanted = wanted
        self.shortcut = shortcut
        self.pull: KeptPullback | None = None


@primitive
def _foreign(call_: _Call, *xs: Any) -> tuple[Any, ...]:
    """The results as a tuple, which autograd follows as one value."""
    arrays = [np.asarray(x) for x in xs]
    if call_.shortcut is not None:
        outs = call_.shortcut(arrays)
    elif call_.wanted:
        outs, call_.pull = call_keeping(call_.function, arrays, NUMPY)
    else:
        outs = call(call_.function, arrays, NUMPY)
    return tuple(outs)


def _active(vectors: Sequence[Any], function: ForeignFunction, outs: bool) -> list[Any]:
    specs = function.out_specs if outs else function.in_specs
    return [v for v, spec in zip(vectors, specs, strict=True) if is_inexact(spec)]


def _conj(x: Any) -> Any:
    """autograd transposes where the algebra takes the adjoint: the conjugate on both sides."""
    return anp.conj(x) if np.dtype(x.dtype).kind == "c" else x


def _vjp(argnums: Sequence[int], ans: Any, args: Any, kwargs: Any) -> Callable[[Any], Any]:
    del kwargs
    call_, *xs = args
    function: ForeignFunction = call_.function

    def vjp(g: Any) -> Any:
        cts = [_conj(ct) for ct in _active([g[i] for i in range(len(ans))], function, True)]
        n = len(xs)
        shortcut = None if call_.pull is None else (lambda arrays: call_.pull(arrays[n:], NUMPY))
        outs = _foreign(_Call(Pullback(function), False, shortcut), *xs, *cts)
        places: dict[int, Any] = {}
        k = 0
        for i, spec in enumerate(function.in_specs):
            if is_inexact(spec):
                places[i + 1] = _conj(outs[k])
                k += 1
        return [places[i] if i in places else anp.zeros(np.shape(xs[i - 1])) for i in argnums]

    return vjp


def _jvp(argnums: Sequence[int], gs: Sequence[Any], ans: Any, args: Any, kwargs: Any) -> Any:
    del kwargs
    call_, *xs = args
    function: ForeignFunction = call_.function
    given = dict(zip(argnums, gs, strict=True))
    tangents = [
        given[i + 1] if i + 1 in given else anp.zeros_like(x)
        for i, (x, spec) in enumerate(zip(xs, function.in_specs, strict=True))
        if is_inexact(spec)
    ]
    tys = _foreign(_Call(Pushforward(function), False), *xs, *tangents)
    result, k = [], 0
    for y, spec in zip([ans[i] for i in range(len(ans))], function.out_specs, strict=True):
        if is_inexact(spec):
            result.append(tys[k])
            k += 1
        else:
            result.append(np.zeros(np.shape(y)))
    return traced_tuple(result)


defvjp_argnums(_foreign, _vjp)
defjvp_argnums(_foreign, _jvp)
