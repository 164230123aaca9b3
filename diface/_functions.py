"""From a user's function of pytrees to a function of tuples of arrays, and back.

A ``Layout`` is everything static about a call's arguments; a ``Run`` is one run of the user's
function inside an engine; a ``Structure`` is everything static about what the function returned.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from diface import _pytree
from diface._engine import Array, ArrayLibrary, Arrays, ArraySpec
from diface._exchange import PYTHON, library_of
from diface.errors import DifaceError, NotDifferentiableError, UntracedOutputWarning

__all__ = ["Layout", "Run", "Structure", "layout_of"]


class _Identity:
    """A stand-in for an unhashable static leaf: equal only to the same object."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    return (type(value), value)


class Layout:
    """The static part of a call's arguments: structure, specifications and non-array leaves.

    Attributes:
        key: A hashable value; two calls with equal keys can share everything compiled.
        positions: Where in the list of all leaves the arrays stand.
        libraries: The library of each array.
        specs: The specification of each array.
    """

    __slots__ = (
        "bare", "key", "libraries", "matchers", "positions", "spec", "specs", "statics", "template"
    )

    def __init__(self, leaves: list[Any], spec: _pytree.TreeSpec, bare: bool) -> None:
        self.spec = spec
        self.bare = bare
        libraries = [library_of(leaf) for leaf in leaves]
        self.positions = tuple(i for i, library in enumerate(libraries) if library is not None)
        self.libraries: tuple[ArrayLibrary, ...] = tuple(lib for lib in libraries if lib is not None)
        arrays = [leaves[i] for i in self.positions]
        self.specs = tuple(
            library.describe(x) for library, x in zip(self.libraries, arrays, strict=True)
        )
        self.matchers = tuple(
            library.matcher(spec, x)
            for library, spec, x in zip(self.libraries, self.specs, arrays, strict=True)
        )
        self.template = [
            None if library is not None else leaf for leaf, library in zip(leaves, libraries, strict=True)
        ]
        self.statics = tuple(_hashable(leaf) for leaf in self.template)
        self.key = (spec, self.specs, self.statics)

    def arrays_of(self, args: tuple[Any, ...]) -> list[Any] | None:
        """The arrays of another call, or ``None`` if its layout is not this one."""
        if self.bare:
            if len(args) != len(self.matchers):
                return None
            arrays: Sequence[Any] = args
        else:
            leaves, spec = _pytree.flatten(args)
            if spec != self.spec:
                return None
            arrays = [leaves[i] for i in self.positions]
            if len(arrays) != len(leaves):
                for leaf, static, library in zip(leaves, self.statics, self._kinds(), strict=True):
                    if library is None and _hashable(leaf) != static:
                        return None
        for matches, x in zip(self.matchers, arrays):  # noqa: B905 (on the hot path; lengths are equal)
            if not matches(x):
                return None
        return list(arrays)

    def _kinds(self) -> list[ArrayLibrary | None]:
        kinds: list[ArrayLibrary | None] = [None] * len(self.template)
        for i, library in zip(self.positions, self.libraries, strict=True):
            kinds[i] = library
        return kinds

    def describe(self, name: str) -> list[tuple[str, str]]:
        """A line for each leaf: how it is reached, and what it is."""
        texts = [repr(leaf) for leaf in self.template]
        for i, spec in zip(self.positions, self.specs, strict=True):
            texts[i] = str(spec)
        return list(zip(_pytree.paths(self.spec, name), texts, strict=True))


def layout_of(args: tuple[Any, ...]) -> tuple[Layout, list[Any]]:
    """The layout of a call's arguments, and their arrays."""
    leaves, spec = _pytree.flatten(args)
    bare = len(leaves) == len(args) and all(leaf is arg for leaf, arg in zip(leaves, args, strict=True))
    layout = Layout(leaves, spec, False)
    layout.bare = bare and len(layout.positions) == len(leaves)
    return layout, [leaves[i] for i in layout.positions]


class Structure(NamedTuple):
    """The static part of what a function returned.

    ``kinds`` says for each leaf of y where it is: an index into the differentiated ``ys``,
    ``-1 - i`` for the i-th carried array, or ``STATIC + i`` for the i-th of ``statics``.
    ``aux_leaves`` are as returned, with an index of a carried array in place of each array.
    """

    spec: _pytree.TreeSpec
    kinds: tuple[int, ...]
    aux_spec: _pytree.TreeSpec | None
    aux_leaves: tuple[Any, ...]
    statics: tuple[Any, ...] = ()

    def value(self, ys: Iterable[Any], carried: Sequence[Any]) -> Any:
        """The tree of y with ``ys`` at the differentiated leaves."""
        if self is SINGLE:
            return next(iter(ys))
        ys = tuple(ys)
        return _pytree.unflatten(self.spec, [ys[k] if k >= 0 else carried[-1 - k] for k in self.kinds])

    def auxiliary(self, carried: Sequence[Any]) -> Any:
        """The auxiliary result as the function returned it."""
        assert self.aux_spec is not None
        leaves = [carried[leaf.place] if isinstance(leaf, _Carried) else leaf for leaf in self.aux_leaves]
        return _pytree.unflatten(self.aux_spec, leaves)


class _Carried(NamedTuple):
    place: int


STATIC = 2**30
"""Where the kinds of static leaves begin."""

SINGLE = Structure(_pytree.LEAF, (0,), None, ())
"""One differentiable array, the common case."""


class Run:
    """One run of a user's function as ``(*xs) -> (ys, carried)``; afterwards knows the ``structure``.

    Args:
        f: The user's function.
        layout: The layout of its arguments.
        active: Which of the layout's arrays the ``xs`` stand for.
        arrays: All arrays, in the engine's library.
        library: The engine's array library.
        has_aux: Whether ``f`` returns ``(y, aux)``.
        label: ``operator(backend)``, for messages.
        in_order: Whether the ``xs`` are all the arrays, in their order.
        copies: A list if each run is to get copies of its constants; it then tells, by an entry each,
            of runs that wrote into them. ``None``: the constants are shared.
        statics: Whether y may have leaves that are no arrays, which pass through.
    """

    __slots__ = (
        "__weakref__", "active", "arrays", "copies", "f", "has_aux", "in_order", "label", "layout", "library",
        "statics", "structure",
    )

    def __init__(
        self,
        f: Callable[..., Any],
        layout: Layout,
        active: tuple[int, ...],
        arrays: Sequence[Any],
        library: ArrayLibrary,
        has_aux: bool,
        label: str,
        in_order: bool,
        copies: list[bool] | None = None,
        statics: bool = False,
    ) -> None:
        self.statics = statics
        self.in_order = in_order
        self.copies = copies
        self.f = f
        self.layout = layout
        self.active = active
        self.arrays = arrays
        self.library = library
        self.has_aux = has_aux
        self.label = label
        self.structure = SINGLE

    def __call__(self, *xs: Array) -> tuple[Arrays, Arrays]:
        if self.in_order and self.layout.bare:
            return self.accept(self.f(*xs), xs)
        if self.copies is None:
            return self.accept(self.f(*self.arguments(xs)), xs)
        constants = [x if library_of(x) is PYTHON else self.library.copy(x) for x in self.arrays]
        before = [self.library.version(x) for x in constants]
        result = self.f(*self.arguments(xs, constants))
        if [self.library.version(x) for x in constants] != before:
            self.copies.append(True)
        return self.accept(result, xs)

    def arguments(self, xs: Sequence[Array], arrays: Sequence[Array] | None = None) -> Sequence[Any]:
        """The user's arguments with ``xs`` in the places of the active arrays (and ``arrays`` in all others)."""
        layout = self.layout
        arrays = list(self.arrays if arrays is None else arrays)
        for i, x in zip(self.active, xs, strict=True):
            arrays[i] = x
        if layout.bare:
            return arrays
        leaves = list(layout.template)
        for i, x in zip(layout.positions, arrays, strict=True):
            leaves[i] = x
        args: tuple[Any, ...] = _pytree.unflatten(layout.spec, leaves)
        return args

    def accept(self, result: Any, xs: Sequence[Array] = ()) -> tuple[Arrays, Arrays]:
        """The user's result as ``(ys, carried)``."""
        if not self.has_aux and library_of(result) is self.library and self.library.is_inexact(result):
            self.structure = SINGLE
            return (result,), ()
        return self._open(result, xs)

    def _open(self, result: Any, xs: Sequence[Array]) -> tuple[Arrays, Arrays]:
        aux: Any = None
        if self.has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise DifaceError(
                    f"{self.label}: has_aux=True, but f returned {_a(result)}; a pair (y, aux) was expected. "
                    "Return (y, aux), or drop has_aux."
                )
            result, aux = result
        leaves, spec = _pytree.flatten(result)
        ys: list[Array] = []
        carried: list[Array] = []
        kinds: list[int] = []
        statics: list[Any] = []
        for leaf, path in zip(leaves, _pytree.paths(spec, "y"), strict=True):
            if self.statics and (library_of(leaf) is None or library_of(leaf) is PYTHON):
                if any(library_of(x) is not PYTHON for x in xs):
                    self._warn_untraced(leaf, path)
                kinds.append(STATIC + len(statics))
                statics.append(leaf)
                continue
            array = self._admit(leaf, path, xs)
            if self.library.is_inexact(array):
                kinds.append(len(ys))
                ys.append(array)
            else:
                kinds.append(-1 - len(carried))
                carried.append(array)
        aux_spec, aux_leaves = None, []
        if self.has_aux:
            opened, aux_spec = _pytree.flatten(aux)
            for leaf in opened:
                if library_of(leaf) is self.library:
                    aux_leaves.append(_Carried(len(carried)))
                    carried.append(leaf)
                else:
                    aux_leaves.append(leaf)
        self.structure = Structure(spec, tuple(kinds), aux_spec, tuple(aux_leaves), tuple(statics))
        return tuple(ys), tuple(carried)

    def _admit(self, leaf: Any, path: str, xs: Sequence[Array]) -> Array:
        """A leaf of y as an array of the engine."""
        library = library_of(leaf)
        if library is self.library:
            return leaf
        if library is None:
            raise NotDifferentiableError(
                f"{self.label}: f returned {_a(leaf)} at {path}; an array or a number was expected. "
                "Return it as auxiliary data: has_aux=True, return (y, aux)."
            )
        if library is PYTHON:
            self._warn_untraced(leaf, path)
            if isinstance(leaf, float) and xs:
                return self.library.scalar(leaf, xs[0])
            return self.library.from_numpy(np.asarray(leaf))[0]
        view = library.to_numpy(leaf)
        if view is None or library.is_traced(leaf):
            raise NotDifferentiableError(
                f"{self.label}: f returned an array of {library.name} at {path}; this engine needs one of "
                f"{self.library.name}. Compute with diface.array_namespace(x), or wrap the foreign part: "
                "diface.DifferentiateWith(part, backend)."
            )
        return self.library.from_numpy(view)[0]

    def _warn_untraced(self, leaf: Any, path: str) -> None:
        if isinstance(leaf, float) and self.library.untraced_numbers:
            warnings.warn(
                f"{self.label}: f returned the Python float {leaf!r} at {path}, which cannot be followed; "
                "its derivative is taken as zero. Return a tensor (without .item() or float()).",
                UntracedOutputWarning,
                stacklevel=2,
            )


def _a(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"


def spec_text(specs: Sequence[ArraySpec]) -> str:
    """Specifications as text, for messages."""
    return ", ".join(map(str, specs))
