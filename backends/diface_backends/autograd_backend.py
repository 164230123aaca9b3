"""HIPS autograd as an engine: NumPy arrays, boxed while they are followed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import autograd.numpy as autograd_numpy
import numpy as np
from autograd import core
from autograd.builtins import tuple as traced_tuple
from autograd.numpy.numpy_boxes import ArrayBox
from autograd.tracer import isbox

from diface import AutoAutograd
from diface.errors import UnsupportedError
from diface.extend import Arrays, ArraySpec, Function, Guest, Host, NumpyLibrary, PullbackMap, Results

# autograd's modules are made at run time, so that no checker can know what is in them.
anp: Any = autograd_numpy
make_jvp: Any = core.make_jvp
make_vjp: Any = core.make_vjp

__all__ = ["AUTOGRAD", "AutogradGuest", "AutogradLibrary"]


class AutogradLibrary(NumpyLibrary):
    """NumPy arrays and autograd's boxes around them."""

    name = "autograd"

    def owns(self, kind: type) -> bool:
        return issubclass(kind, ArrayBox)

    @property
    def host(self) -> Host:
        return _host()

    def describe(self, x: Any) -> ArraySpec:
        return ArraySpec(self.name, tuple(x.shape), x.dtype.name, "traced" if isbox(x) else "cpu")

    def matcher(self, spec: ArraySpec, x: Any) -> Callable[[Any], bool]:
        return lambda other: isbox(other) and self.describe(other) == spec

    def is_traced(self, x: Any) -> bool:
        return isbox(x)

    def namespace(self, x: Any) -> Any:
        return anp

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        if isbox(x):
            raise UnsupportedError(
                "exchange(autograd): an array that autograd is following cannot be handed to another library. "
                "Wrap the function that needs it: diface.DifferentiateWith(f, backend)."
            )
        return np.asarray(x)

    def copy(self, x: Any) -> Any:
        return x if isbox(x) else np.array(x)

    def protect(self, x: Any) -> Any:
        return super().protect(x) if isinstance(x, np.ndarray) else x

    def writable(self, x: Any, *, fresh: bool) -> Any:
        return x if isbox(x) else super().writable(np.asarray(x), fresh=fresh)


AUTOGRAD = AutogradLibrary()


@functools.cache
def _host() -> Host:
    from diface_backends.autograd_host import AutogradHost  # built on this module

    return AutogradHost()


class AutogradGuest(Guest):
    """Differentiates functions written with ``autograd.numpy``."""

    specification = AutoAutograd
    name = "autograd"
    library = AUTOGRAD
    modes = frozenset({"forward", "reverse"})
    nests = True

    def value_and_pullback(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, PullbackMap]:
        _check(xs)
        traced = _Traced(function)
        vjp, ys = make_vjp(traced, traced_tuple(xs))
        if traced.constant is not None:
            zeros = tuple(anp.zeros_like(x) for x in xs)
            return traced.constant, traced.aux, lambda cotangents: zeros
        dtypes = [x.dtype for x in xs]
        complexes = any(np.iscomplexobj(_value(v)) for v in (*xs, *ys))

        def pull(cotangents: Arrays) -> Arrays:
            if complexes:
                # autograd's pullback is the transpose; the adjoint is its conjugate on both sides.
                cotangents = tuple(map(anp.conj, cotangents))
            out = vjp(traced_tuple(cotangents))
            if complexes:
                out = tuple(map(anp.conj, out))
            return tuple(_cast(t, dtype) for t, dtype in zip(out, dtypes, strict=True))

        return _arrays(ys), traced.aux, pull

    def value_and_gradient(self, function: Function, xs: Arrays, seed: Callable[[Arrays], Arrays]) -> Results:
        if len(xs) != 1 or xs[0].dtype.kind != "f":
            return super().value_and_gradient(function, xs, seed)
        # One argument needs no traced tuple, which costs as much as a small function itself.
        traced = _TracedSingle(function)
        vjp, y = make_vjp(traced, xs[0])
        if traced.constant is not None:
            seed(traced.constant)
            return traced.constant, traced.aux, (anp.zeros_like(xs[0]),)
        ys = _arrays(y) if traced.several else (y if isbox(y) else np.asarray(y),)
        cotangents = seed(ys)
        cotangent = traced_tuple(cotangents) if traced.several else cotangents[0]
        if any(np.iscomplexobj(_value(y)) for y in ys):
            return super().value_and_gradient(function, xs, seed)  # conjugates on both sides
        return ys, traced.aux, (_cast(vjp(cotangent), xs[0].dtype),)

    def value_and_pushforward(self, function: Function, xs: Arrays, txs: Arrays) -> Results:
        _check(xs)
        traced = _Traced(function)
        try:
            ys, tys = make_jvp(traced, traced_tuple(xs))(traced_tuple(txs))
        except NotImplementedError:
            # autograd has reverse rules for more functions than forward rules. The pullback is linear
            # in its cotangent, so its own pullback is the pushforward.
            return self._pushforward_by_pullbacks(function, xs, txs)
        if traced.constant is not None:
            return traced.constant, traced.aux, tuple(anp.zeros_like(y) for y in traced.constant)
        return _arrays(ys), traced.aux, tuple(
            _cast(t, y.dtype) for t, y in zip(_arrays(tys), _arrays(ys), strict=True)
        )

    def _pushforward_by_pullbacks(self, function: Function, xs: Arrays, txs: Arrays) -> Results:
        ys, aux, pull = self.value_and_pullback(function, xs)
        zeros = tuple(anp.zeros_like(y) for y in ys)
        transpose = self.value_and_pullback(lambda *cts: (pull(cts), ()), zeros)[2]
        return ys, aux, transpose(txs)


class _Traced:
    """``function`` as autograd wants it (of one tuple), with the auxiliary arrays taken aside."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self.aux: Arrays = ()
        self.constant: Arrays | None = None

    def __call__(self, xs: Any) -> Any:
        level = xs._trace
        ys, aux = self._function(*[xs[i] for i in range(len(xs))])
        self.aux = tuple(_unbox(a, level) for a in aux)
        if not any(isbox(y) and y._trace >= level for y in ys):
            # Nothing depends on xs. autograd warns of that; here it is no fault, and xs stand in.
            self.constant = _arrays(ys)
            return xs
        return traced_tuple(ys)


class _TracedSingle:
    """``function`` of one argument, whose one result autograd follows as it is."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self.aux: Arrays = ()
        self.constant: Arrays | None = None
        self.several = False

    def __call__(self, x: Any) -> Any:
        level = x._trace
        ys, aux = self._function(x)
        self.aux = tuple(_unbox(a, level) for a in aux)
        if not any(isbox(y) and y._trace >= level for y in ys):
            self.constant = _arrays(ys)
            return x
        self.several = len(ys) > 1
        return traced_tuple(ys) if self.several else ys[0]


def _unbox(x: Any, level: int | None) -> Any:
    """``x`` without the boxes of the trace at ``level`` and inside; outer traces still follow it."""
    while level is not None and isbox(x) and x._trace >= level:
        x = x._value
    return x


def _value(x: Any) -> Any:
    while isbox(x):
        x = x._value
    return x


def _arrays(ys: Any) -> Arrays:
    return tuple([y if isbox(y) else np.asarray(y) for y in [ys[i] for i in range(len(ys))]])


def _cast(t: Any, dtype: Any) -> Any:
    """Derivatives in the precision of what they belong to; autograd computes some in float64."""
    t = t if isbox(t) else np.asarray(t)
    if t.dtype == dtype:
        return t
    return (anp.real(t) if np.dtype(dtype).kind == "f" else t).astype(dtype)


def _check(xs: Arrays) -> None:
    for x in xs:
        if x.dtype.kind not in "fc":
            raise UnsupportedError(
                f"gradient(autograd): autograd cannot differentiate arrays of dtype {x.dtype}. "
                "Convert them to float32 or float64, or use another backend."
            )
