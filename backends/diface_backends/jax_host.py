"""JAX as a host: four primitives whose rules name only the algebra of guest functions.

``foreign``    (xs) -> ys, for any foreign function F
``linearize``  (xs) -> (ys, ticket): also keeps the guest's pullback, under the ticket
``push``       (ticket, xs, txs) -> J txs, linear in txs; its transpose is ``pull``
``pull``       (ticket, xs, cts) -> Jᵀ cts, linear in cts: by the kept pullback if it is still there,
               else by ``Pullback(F)``; so a lost ticket costs time, never the result

Reverse mode in JAX transposes what forward mode recorded, and a residual has to be an array: hence
the ticket, an integer that stands for the pullback of that very run.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, partial_eval
from jax.sharding import NamedSharding, PartitionSpec

from diface.extend import (
    NUMPY,
    ArraySpec,
    Batched,
    ForeignFunction,
    Host,
    Joint,
    KeptPullback,
    Pullback,
    Pushforward,
    WithGradient,
    call,
    call_keeping,
    freeze,
    gradient_suffices,
    is_inexact,
)
from diface_backends.jax_arrays import JAX

__all__ = ["JAXHost"]

_STAGED = (partial_eval.DynamicJaxprTracer, partial_eval.JaxprTracer)
_LOST = -1
T = TypeVar("T")


class JAXHost(Host):
    """JAX's tracers as arguments of a foreign function."""

    def follows(self, x: Any) -> bool:
        return isinstance(x, jax.core.Tracer)

    def foreign_call(self, function: ForeignFunction, arrays: Sequence[Any]) -> list[Any]:
        return foreign_p.bind(*_varying_alike(arrays), function=function)


# ---- tickets ---------------------------------------------------------------------------------


class _Tickets:
    """Kept pullbacks by ticket: bounded in number and size, the oldest first to go."""

    def __init__(self, count: int, nbytes: int) -> None:
        self._count = count
        self._nbytes = nbytes
        self._total = 0
        self._next = 0
        self._kept: OrderedDict[int, tuple[KeptPullback, int]] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, pull: KeptPullback, nbytes: int) -> int:
        with self._lock:
            self._next = ticket = (self._next + 1) % 2**31
            self._kept[ticket] = (pull, nbytes)
            self._total += nbytes
            while len(self._kept) > 1 and (len(self._kept) > self._count or self._total > self._nbytes):
                self._total -= self._kept.popitem(last=False)[1][1]
        return ticket

    def find(self, ticket: int) -> KeptPullback | None:
        with self._lock:
            entry = self._kept.get(ticket)
            return None if entry is None else entry[0]

    def drop(self, ticket: int) -> None:
        with self._lock:
            entry = self._kept.pop(ticket, None)
            if entry is not None:
                self._total -= entry[1]


_tickets = _Tickets(count=4096, nbytes=2**30)


# ---- the primitives --------------------------------------------------------------------------


def _primitive(name: str) -> Primitive:
    primitive = Primitive(f"diface_{name}")
    primitive.multiple_results = True
    return primitive


foreign_p = _primitive("foreign")
linearize_p = _primitive("linearize")
push_p = _primitive("push")
pull_p = _primitive("pull")


def _avals(specs: Sequence[ArraySpec], args: Sequence[Any] = ()) -> list[Any]:
    for like in args:
        kind = _manual_axes(like)
        if kind is not None and kind.varying:
            # Under shard_map: the results vary over the mesh axes that the arguments vary over.
            return [
                like.update(
                    shape=spec.shape, dtype=jnp.dtype(spec.dtype), weak_type=False,
                    sharding=NamedSharding(like.sharding.mesh, PartitionSpec(*[None] * len(spec.shape))),
                )
                for spec in specs
            ]  # fmt: skip
    return [jax.core.ShapedArray(spec.shape, jnp.dtype(spec.dtype)) for spec in specs]


def _manual_axes(aval: Any) -> Any:
    return getattr(aval, "mat", None)


def _varying_alike(arrays: Sequence[Any]) -> Sequence[Any]:
    """The arguments, all of them varying over the mesh axes of ``shard_map`` that one of them varies over."""
    kinds = [_manual_axes(jax.typeof(x)) for x in arrays]
    axes = [frozenset() if kind is None else kind.varying for kind in kinds]
    union = frozenset().union(*axes) if axes else frozenset()
    if not union:
        return arrays
    return [
        jax.lax.pcast(x, tuple(union - own), to="varying") if union - own else x
        for x, own in zip(arrays, axes, strict=True)
    ]


def _out_specs(function: ForeignFunction) -> tuple[ArraySpec, ...]:
    if function.skeleton in function.root.specs:
        return function.out_specs
    return _apart(lambda: function.out_specs)


def _apart(compute: Callable[[], T]) -> T:
    """``compute()`` in a thread of its own, where JAX is tracing nothing.

    To find the shapes of its results a guest may run its function; JAX arrays made on the way must not
    become part of the program that is being traced here. (``jax.ensure_compile_time_eval`` does not
    reach through the rules of primitives.)
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(compute).result()


@foreign_p.def_abstract_eval
def _foreign_abstract(*xs: Any, function: ForeignFunction) -> Any:
    return _avals(_out_specs(function), xs)


@linearize_p.def_abstract_eval
def _linearize_abstract(*xs: Any, function: ForeignFunction) -> Any:
    return _avals((*_out_specs(function), ArraySpec("jax", (), "int32", "")), xs)


@push_p.def_abstract_eval
def _push_abstract(*xs: Any, function: ForeignFunction) -> Any:
    return _avals(_out_specs(Pushforward(function)), xs)


@pull_p.def_abstract_eval
def _pull_abstract(*xs: Any, function: ForeignFunction, batch: int | None) -> Any:
    specs = _out_specs(Pullback(function))
    return _avals(specs if batch is None else [s._replace(shape=(batch, *s.shape)) for s in specs], xs)


# Eager: the arrays are there, so the guest is called without a callback.


@foreign_p.def_impl
def _foreign_impl(*xs: Any, function: ForeignFunction) -> Any:
    return call(function, _arrays(xs), JAX)


@linearize_p.def_impl
def _linearize_impl(*xs: Any, function: ForeignFunction) -> Any:
    xs = _arrays(xs)
    outs, pull = call_keeping(function, xs, JAX)
    ticket = _tickets.keep(pull, _size(function))
    handle = jnp.asarray(np.int32(ticket))
    weakref.finalize(handle, _tickets.drop, ticket)
    return [*outs, handle]


@push_p.def_impl
def _push_impl(ticket: Any, *xs: Any, function: ForeignFunction) -> Any:
    return call(Pushforward(function), _arrays(xs), JAX)


@pull_p.def_impl
def _pull_impl(ticket: Any, *xs: Any, function: ForeignFunction, batch: int | None) -> Any:
    return _pull(_tickets.find(int(ticket)), _arrays(xs), function, batch, call, JAX)


def _pull(kept: KeptPullback | None, xs: Sequence[Any], function: ForeignFunction, batch: int | None,
          run: Callable[..., Any], library: Any) -> Any:
    """The pullback by what was kept, or else anew."""
    n = len(function.in_specs)
    if kept is not None:
        if batch is None:
            return kept(xs[n:], library)
        outs = kept.batched(xs[n:], batch, library)
        if outs is not None:
            return outs
    target: ForeignFunction = Pullback(function)
    if batch is not None:
        target = Batched(target, (False,) * n + (True,) * (len(xs) - n), batch)
    return run(target, xs, library)


def _arrays(xs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([x if isinstance(x, jax.Array) else jnp.asarray(x) for x in xs])


def _size(function: ForeignFunction) -> int:
    """The memory that a kept pullback may hold, at a guess: a few arrays like those it works on."""
    specs = (*function.in_specs, *function.out_specs)
    return 2 * sum(int(np.prod(s.shape)) * jnp.dtype(s.dtype).itemsize for s in specs) + 1024


# ---- compiled: a callback on XLA's own buffers -----------------------------------------------


@functools.lru_cache(maxsize=4096)
def _callback(kind: str, function: ForeignFunction, batch: int | None) -> Callable[..., None]:
    """The callable for a compiled call; cached, since a fresh one would make JAX compile again."""

    def run(context: Any, outs: Any, *buffers: Any) -> None:
        xs = [np.asarray(b) for b in buffers]
        if kind == "linearize":
            # XLA reuses these buffers when the callback has returned, but a kept pullback needs them.
            results, pull = call_keeping(function, xs, NUMPY, own=True)
            ticket = _tickets.keep(pull, _size(function))
            results = [*results, np.int32(ticket)]
        elif kind == "pull":
            results = _pull(_tickets.find(int(xs[0])), xs[1:], function, batch, call, NUMPY)
        elif kind == "push":
            results = call(Pushforward(function), xs[1:], NUMPY)
        else:
            results = call(function, xs, NUMPY)
        for out, result in zip(outs, results, strict=True):
            np.asarray(out)[...] = result

    return run


def _lower(kind: str, primitive: Primitive, abstract: Callable[..., Any]) -> None:
    def staged(*xs: Any, function: ForeignFunction, batch: int | None = None) -> Any:
        parameters = {"batch": batch} if kind == "pull" else {}
        shapes = [
            jax.ShapeDtypeStruct(a.shape, a.dtype)
            for a in abstract(*map(jax.typeof, xs), function=function, **parameters)
        ]
        return buffer_callback(_callback(kind, function, batch), shapes)(*xs)

    mlir.register_lowering(primitive, mlir.lower_fun(staged, multiple_results=True))


_lower("foreign", foreign_p, _foreign_abstract)
_lower("linearize", linearize_p, _linearize_abstract)
_lower("push", push_p, _push_abstract)
_lower("pull", pull_p, _pull_abstract)


# ---- differentiation -------------------------------------------------------------------------


def _active_tangents(tangents: Sequence[Any], specs: Sequence[ArraySpec]) -> list[Any]:
    return [ad.instantiate_zeros(t) for t, spec in zip(tangents, specs, strict=True) if is_inexact(spec)]


def _with_zeros(tys: Sequence[Any], outs: Sequence[Any], specs: Sequence[ArraySpec]) -> list[Any]:
    remaining = iter(tys)
    return [
        next(remaining) if is_inexact(spec) else _no_tangent(y) for y, spec in zip(outs, specs, strict=True)
    ]


def _gradient_suffices(function: ForeignFunction) -> bool:
    _out_specs(function)
    return gradient_suffices(function)


def _inner(gs: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """Re⟨g, t⟩, linear in t."""
    parts = [jnp.sum(jnp.real(jnp.conj(g) * t)) for g, t in zip(gs, tangents, strict=True)]
    return sum(parts[1:], start=parts[0])


def _no_tangent(y: Any) -> Any:
    return ad.Zero(jax.typeof(y).to_tangent_aval())


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, function: ForeignFunction) -> Any:
    function = freeze(function, [type(t) is not ad.Zero for t in tangents])
    active = _active_tangents(tangents, function.in_specs)
    if active and any(isinstance(x, jax.core.Tracer) for x in primals) and _gradient_suffices(function):
        # One call gives both, and all that is kept is the gradient: an array like any other. (Eagerly, the
        # inner product alone costs more than a ticket.)
        n = len(_out_specs(function))
        both = foreign_p.bind(*primals, function=WithGradient(function))
        outs, tys = both[:n], [_inner(both[n:], active)]
    elif any(isinstance(t, _STAGED) for t in active):
        # The tangents are symbols that will be transposed: reverse mode, or code being staged.
        *outs, ticket = linearize_p.bind(*primals, function=function)
        tys = push_p.bind(ticket, *primals, *active, function=function)
    else:
        n = len(_out_specs(function))
        both = foreign_p.bind(*primals, *active, function=Joint(function))
        outs, tys = both[:n], both[n:]
    return outs, _with_zeros(tys, outs, _out_specs(function))


ad.primitive_jvps[foreign_p] = _jvp


def _linearize_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, function: ForeignFunction) -> Any:
    outs, tys = _jvp(primals, tangents, function=function)
    ticket = jnp.int32(_LOST)  # of this run nothing was kept: the derivative of a derivative is the algebra's
    return [*outs, ticket], [*tys, _no_tangent(ticket)]


ad.primitive_jvps[linearize_p] = _linearize_jvp


def _push_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, function: ForeignFunction) -> Any:
    return _jvp(primals[1:], tangents[1:], function=Pushforward(function))


ad.primitive_jvps[push_p] = _push_jvp


def _pull_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, function: ForeignFunction, batch: int | None
) -> Any:
    target: ForeignFunction = Pullback(function)
    if batch is not None:
        n = len(function.in_specs)
        target = Batched(target, (False,) * n + (True,) * (len(primals) - 1 - n), batch)
    return _jvp(primals[1:], tangents[1:], function=target)


ad.primitive_jvps[pull_p] = _pull_jvp


def _push_transpose(cts: Sequence[Any], ticket: Any, *xs: Any, function: ForeignFunction) -> list[Any]:
    n = len(function.in_specs)
    cotangents = [_conj(ad.instantiate_zeros(ct)) for ct in cts]
    out = pull_p.bind(ticket, *xs[:n], *cotangents, function=function, batch=None)
    return [None] * (1 + n) + [_conj(t) for t in out]


def _conj(x: Any) -> Any:
    """JAX transposes where the algebra takes the adjoint: the conjugate on both sides."""
    return jnp.conj(x) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x


ad.primitive_transposes[push_p] = _push_transpose


def _pull_transpose(
    cts: Sequence[Any], ticket: Any, *xs: Any, function: ForeignFunction, batch: int | None
) -> list[Any]:
    n = len(function.in_specs)
    tangents = [_conj(ad.instantiate_zeros(ct)) for ct in cts]
    if batch is None:
        out = push_p.bind(ticket, *xs[:n], *tangents, function=function)
    else:
        axes = (False,) * n + (True,) * len(tangents)
        out = foreign_p.bind(*xs[:n], *tangents, function=Batched(Pushforward(function), axes, batch))
    return [None] * (1 + n) + [_conj(t) for t in out]


ad.primitive_transposes[pull_p] = _pull_transpose


# ---- vmap ------------------------------------------------------------------------------------


def _mapped(xs: Sequence[Any], axes: Sequence[Any]) -> tuple[list[Any], tuple[bool, ...], int]:
    """The arguments with their mapped axes in front, which are mapped, and the size."""
    flags = tuple(isinstance(axis, int) for axis in axes)
    moved = [
        jnp.moveaxis(x, axis, 0) if flag else x for x, axis, flag in zip(xs, axes, flags, strict=True)
    ]
    size = next(x.shape[0] for x, flag in zip(moved, flags, strict=True) if flag)
    return moved, flags, size


def _foreign_batch(xs: Sequence[Any], axes: Sequence[Any], *, function: ForeignFunction) -> Any:
    xs, flags, size = _mapped(xs, axes)
    _out_specs(function)
    outs = foreign_p.bind(*xs, function=Batched(function, flags, size))
    if size == 0:
        return outs, [0] * len(outs)
    # A value does not depend on a mapped tangent: it is the same in every row, and JAX wants it once.
    mapped = function.mapped_outs(flags)
    return [y if flag else y[0] for y, flag in zip(outs, mapped, strict=True)], [0 if flag else None for flag in mapped]


batching.primitive_batchers[foreign_p] = _foreign_batch


def _linearize_batch(xs: Sequence[Any], axes: Sequence[Any], *, function: ForeignFunction) -> Any:
    xs, flags, size = _mapped(xs, axes)
    outs = linearize_p.bind(*xs, function=Batched(function, flags, size))
    return outs, [0] * (len(outs) - 1) + [None]


batching.primitive_batchers[linearize_p] = _linearize_batch


def _push_batch(xs: Sequence[Any], axes: Sequence[Any], *, function: ForeignFunction) -> Any:
    xs, flags, size = _mapped(xs, axes)
    outs = foreign_p.bind(*xs[1:], function=Batched(Pushforward(function), flags[1:], size))
    return outs, [0] * len(outs)


batching.primitive_batchers[push_p] = _push_batch


def _pull_batch(
    xs: Sequence[Any], axes: Sequence[Any], *, function: ForeignFunction, batch: int | None
) -> Any:
    xs, flags, size = _mapped(xs, axes)
    n = len(function.in_specs)
    primal_flags, ct_flags = flags[1 : 1 + n], flags[1 + n :]
    active = [flag for flag, spec in zip(primal_flags, function.in_specs, strict=True) if is_inexact(spec)]
    if batch is None and not flags[0] and not any(primal_flags):
        # jacrev: one run, many cotangents.
        cts = [_along(ct, flag, size) for ct, flag in zip(xs[1 + n :], ct_flags, strict=True)]
        outs = pull_p.bind(*xs[: 1 + n], *cts, function=function, batch=size)
    elif batch is None and not flags[0] and all(active):
        # vmap(grad): the run that was kept was the mapped one, whose pullback is the mapped pullback
        # (only where every argument is mapped: it sums over the others).
        cts = [_along(ct, flag, size) for ct, flag in zip(xs[1 + n :], ct_flags, strict=True)]
        outs = pull_p.bind(*xs[: 1 + n], *cts, function=Batched(function, primal_flags, size), batch=None)
    else:
        target: ForeignFunction = Pullback(function)
        if batch is not None:
            target = Batched(target, (False,) * n + (True,) * (len(xs) - 1 - n), batch)
        outs = foreign_p.bind(*xs[1:], function=Batched(target, flags[1:], size))
    return outs, [0] * len(outs)


def _along(x: Any, mapped: bool, size: int) -> Any:
    return x if mapped else jnp.broadcast_to(x, (size, *x.shape))


batching.primitive_batchers[pull_p] = _pull_batch

