"""Running foreign functions: a host's arrays in, a host's arrays out, the guest's engine in between.

``call`` computes the results; ``call_keeping`` also keeps the guest's pullback, so that a derivative
in reverse mode does not run the function again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diface import _pytree
from diface._algebra import (
    ForeignFunction,
    Frozen,
    GuestFunction,
    Partial,
    Root,
    WithGradient,
    gradient_suffices,
    merge,
)
from diface._engine import Array, ArrayLibrary, Arrays, ArraySpec
from diface._exchange import NUMPY, convert
from diface._functions import Structure
from diface.errors import UnsupportedError

__all__ = ["KeptPullback", "call", "call_keeping", "infer_specs"]

_NO_SCOPE = contextlib.nullcontext()


def call(function: ForeignFunction, arrays: Sequence[Array], host: ArrayLibrary, *, own: bool = False) -> list[Array]:
    """The results of ``function`` for a host's arrays, in the host's library.

    Args:
        function: The function.
        arrays: Its arguments, in the library ``host``.
        host: The library of arguments and results.
        own: The guest gets copies of the arguments (their memory is not theirs to keep).
    """
    root = function.root
    with root.scope() if root.scope is not None else _NO_SCOPE:
        outs = _guarded(root, lambda xs: _executor(function)(*function.numbers, *xs), _import(root, arrays, host, own))
        _note_specs(function, outs)
        return [_export(y, root, host) for y in outs]


def call_keeping(
    function: ForeignFunction, arrays: Sequence[Array], host: ArrayLibrary, *, own: bool = False
) -> tuple[list[Array], KeptPullback]:
    """As ``call``, and the pullback of this very run."""
    root = function.root
    if root.scope is None:
        return _keep(root, function, arrays, host, own)
    with root.scope():
        return _keep(root, function, arrays, host, own)


def _keep(
    root: Root, function: ForeignFunction, arrays: Sequence[Array], host: ArrayLibrary, own: bool
) -> tuple[list[Array], KeptPullback]:
    if root.seen and gradient_suffices(function):
        return _keep_gradient(function, arrays, host)
    run = _keeping_executor(function)
    xs = _import(root, arrays, host, own)
    if root.library.mutable:
        (ys, carried, pull), flags = _guarded(root, lambda xs: run(*function.numbers, *xs), xs)
    else:
        (ys, carried, pull), flags = run(*function.numbers, *xs)
    results = merge(flags, ys, carried) if carried else ys
    _note_specs(function, results)
    outs = [_export(y, root, host) for y in results]
    if not root.guest.fresh_outputs and host.mutable:
        # The pullback may need these very numbers: they are not the caller's to write into.
        outs = [host.copy(y) for y in outs]
    return outs, KeptPullback(function, pull)


def _keep_gradient(
    function: ForeignFunction, arrays: Sequence[Array], host: ArrayLibrary
) -> tuple[list[Array], KeptPullback]:
    outs = call(WithGradient(function), arrays, host)
    count = len(function.out_specs)
    return outs[:count], KeptGradient(function, outs[count:])


class KeptPullback:
    """The pullback of one run, to be applied to cotangents in any host's arrays, any number of times."""

    __slots__ = ("function", "pull")

    def __init__(self, function: ForeignFunction, pull: Any) -> None:
        self.function = function
        self.pull = pull

    def __call__(self, cotangents: Sequence[Array], host: ArrayLibrary) -> list[Array]:
        """``Jᵀ cotangents``, in the library ``host`` as they are."""
        root = self.function.root
        if root.scope is None:
            return self._apply(root, cotangents, host)
        with root.scope():
            return self._apply(root, cotangents, host)

    def _apply(self, root: Root, cotangents: Sequence[Array], host: ArrayLibrary) -> list[Array]:
        if host is not root.library:
            cotangents = [root.guest.admit(c, host, root.library) for c in cotangents]
        return [_export(t, root, host) for t in root.guest.call_linear(self.pull, tuple(cotangents))]

    def batched(self, cotangents: Sequence[Array], size: int, host: ArrayLibrary) -> list[Array] | None:
        """For cotangents with a leading axis of length ``size``; ``None`` if the guest would need a loop."""
        root = self.function.root
        calculus = self.function.calculus()
        if not (calculus.guest is root.guest and calculus.reverse and root.guest.vectorized):
            return None
        with root.scope() if root.scope is not None else _NO_SCOPE:
            cts = tuple([convert(c, host, root.library) for c in cotangents])
            return [_export(t, root, host) for t in root.guest.batched_pullback(self.pull, cts, size)]


class KeptGradient(KeptPullback):
    """The pullback of one run that gives one real number: its gradient, in the host's arrays."""

    __slots__ = ()

    def __call__(self, cotangents: Sequence[Array], host: ArrayLibrary) -> list[Array]:
        (ct,) = cotangents
        return [g * ct for g in self.pull]

    def batched(self, cotangents: Sequence[Array], size: int, host: ArrayLibrary) -> list[Array]:
        (ct,) = cotangents
        reshape = host.namespace(ct).reshape
        return [g * reshape(ct, (size, *([1] * len(g.shape)))) for g in self.pull]


def _import(root: Root, arrays: Sequence[Array], host: ArrayLibrary, own: bool) -> list[Array]:
    library = root.library
    result = []
    for x in arrays:
        if host is not library:
            x = root.guest.admit(x, host, library)
        elif root.guest.numeric:
            x = library.detach(x)
        if own or root.writes:
            x = library.copy(x)
        result.append(x)
    return result


def _guarded(root: Root, run: Callable[[Sequence[Array]], Any], arrays: list[Array]) -> Any:
    """Runs ``run`` such that a function that writes into its arguments writes into copies."""
    library = root.library
    if root.writes or not library.mutable:
        return run(arrays)
    if library.protects:
        try:
            return run([library.protect(x) for x in arrays])
        except Exception as error:
            if not root.guest.is_write_error(error):
                raise
            root.writes = True
            return run([library.copy(x) for x in arrays])
    if root.writes is None:
        # The first run is on copies, to find out; from then on memory is shared.
        copies = [library.copy(x) for x in arrays]
        before = [library.version(x) for x in copies]
        result = run(copies)
        root.writes = [library.version(x) for x in copies] != before
        return result
    return run(arrays)


def _export(x: Array, root: Root, host: ArrayLibrary) -> Array:
    if host is root.library:
        return root.library.detach(x)
    return convert(x, root.library, host)


def _note_specs(function: ForeignFunction, outs: Sequence[Array]) -> None:
    """A run has shown the results' specifications: no need to infer them later."""
    root = function.root
    if root.seen and function.order == 0:
        return
    while isinstance(function, Frozen):
        function = function.function
    skeleton = function.skeleton
    if skeleton not in root.specs:
        root.specs[skeleton] = tuple(root.library.describe(y) for y in outs)
    root.seen = root.seen or isinstance(function, GuestFunction)


def _executor(function: ForeignFunction) -> Callable[..., Arrays]:
    executors = function.root.executors
    skeleton = function.skeleton
    found: Callable[..., Arrays] | None = executors.get((0, skeleton))
    if found is None:
        count = len(function.numbers)

        def run(*arrays: Array) -> Any:
            return skeleton.bind(arrays[:count])(*arrays[count:]), None

        compiled = function.root.guest.compile(run)
        found = executors[0, skeleton] = lambda *arrays: compiled(*arrays)[0]
    return found


def _keeping_executor(function: ForeignFunction) -> Callable[..., Any]:
    root = function.root
    if function is root.plain and root.keeping is not None:
        return root.keeping
    executors = function.root.executors
    skeleton = function.skeleton
    found: Callable[..., Any] | None = executors.get((1, skeleton))
    if found is None:
        count = len(function.numbers)

        def run(*arrays: Array) -> Any:
            partial = Partial(skeleton.bind(arrays[:count]), arrays[count:])
            ys, carried, pull = partial.function.calculus().pullback(partial, partial.active)
            return (ys, carried, pull), partial.flags

        found = executors[1, skeleton] = root.guest.compile(run)
        if function is root.plain:
            root.keeping = found
    return found


# ---- shapes of results -----------------------------------------------------------------------


def infer_specs(function: GuestFunction) -> tuple[ArraySpec, ...]:
    """The specifications of the user's function's results: by ``out=``, without values, or by one trial."""
    root = function.root
    if root.out is not None:
        return _declared(root)
    with root.scope() if root.scope is not None else _NO_SCOPE:
        found = root.guest.evaluate_shapes(function, root.in_specs)
        if found is not None:
            return tuple(ArraySpec(root.library.name, tuple(shape), dtype, "") for shape, dtype in found)
        outs = function(*[root.guest.admit(x, NUMPY, root.library) for x in _samples(root)])
        return tuple(root.library.describe(y) for y in outs)


def _samples(root: Root) -> list[np.ndarray[Any, Any]]:
    """Arguments of the right shapes for a trial run: neither zero nor singular."""
    rng = np.random.default_rng(0)
    samples = []
    for spec in root.in_specs:
        values = rng.uniform(0.5, 1.5, spec.shape)
        dtype = "float32" if spec.dtype == "bfloat16" else spec.dtype
        samples.append(np.asarray(values).astype(dtype))
    return samples


def _declared(root: Root) -> tuple[ArraySpec, ...]:
    """What the user declared by ``out=``."""
    out = root.out
    if callable(out):
        out = out(*root.in_specs)
    leaves, spec = _pytree.flatten(out)
    specs = []
    kinds: list[int] = []
    inexact = carried = 0
    for leaf in leaves:
        try:
            shape, dtype = tuple(leaf.shape), str(np.dtype(leaf.dtype).name)
        except (AttributeError, TypeError) as error:
            raise UnsupportedError(
                f"{root.label}: out= holds {type(leaf).__name__} {leaf!r}; things with shape and dtype were "
                "expected. Use for example numpy.empty(shape, dtype) or jax.ShapeDtypeStruct(shape, dtype)."
            ) from error
        entry = ArraySpec(root.library.name, shape, dtype, "")
        specs.append(entry)
        if "float" in dtype or "complex" in dtype:
            kinds.append(inexact)
            inexact += 1
        else:
            kinds.append(-1 - carried)
            carried += 1
    root.structure = Structure(spec, tuple(kinds), None, ())
    return tuple(specs)
