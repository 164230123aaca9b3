"""The algebra of guest functions, closed under differentiation and mapping.

A ``ForeignFunction`` maps a tuple of arrays to a tuple of arrays and belongs to one guest engine::

    GuestFunction       what the user wrote
    Joint(F)            (xs, txs) -> (ys, J txs)
    Pushforward(F)      (xs, txs) -> J txs          linear in txs
    Pullback(F)         (xs, cts) -> Jᵀ cts         linear in cts
    WithGradient(F)     (xs) -> (ys, ∇y), for F with one real number among its results
    Batched(F, axes)    F mapped over a leading axis of some of its arguments
    Frozen(F, flags)    F, some of whose arguments nobody differentiates by

A host needs one primitive, ``foreign_call(F, *arrays)``, whose rules name only these: the derivative
of a ``foreign_call`` is again a ``foreign_call``. So forward and reverse mode, higher orders, ``vmap``
and their mixtures follow with no further code.

Everything here is hashable by value and knows no host. ``txs`` and ``cts`` stand only for arguments
and results that are floating point.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from diface._derivation.calculus import Calculus
from diface._engine import Array, ArrayLibrary, Arrays, ArraySpec, Guest
from diface._functions import STATIC, Layout, Run, Structure
from diface._registry import guest_of
from diface._specs import AutoFiniteDiff, Backend
from diface.errors import UnsupportedError

__all__ = [
    "Batched",
    "ForeignFunction",
    "Frozen",
    "GuestFunction",
    "Joint",
    "Partial",
    "Pullback",
    "Pushforward",
    "Root",
    "WithGradient",
    "freeze",
    "gradient_suffices",
    "is_inexact",
]


def is_inexact(spec: ArraySpec) -> bool:
    """Whether there are derivatives with respect to arrays of this specification."""
    return spec.library != _CONSTANT and ("float" in spec.dtype or "complex" in spec.dtype)


_CONSTANT = "constant"


class Root:
    """What all functions derived from one call of a user's function have in common.

    Attributes:
        executors: What the guest has compiled for functions with this root, by function.
        structure: The structure of the function's result, once it is known.
        writes: Whether the function writes into its arguments (``None``: not known yet).
    """

    def __init__(
        self, f: Callable[..., Any], backend: Backend, library: ArrayLibrary, layout: Layout, name: str, out: Any
    ) -> None:
        self.guest: Guest = guest_of(backend)
        self.f = self.guest.adopt(f)
        self.backend = backend
        self.library = library
        self.layout = layout
        self.name = name
        self.out = out
        self.numbers = tuple(i for i, lib in enumerate(layout.libraries) if lib.name == "python")
        self.inputs = tuple(i for i in range(len(layout.libraries)) if i not in set(self.numbers))
        self.in_specs = tuple(layout.specs[i] for i in self.inputs)
        self.scope = library.scope(self.in_specs)
        self.executors: dict[Any, Any] = {}
        self.specs: dict[ForeignFunction, tuple[ArraySpec, ...]] = {}
        self.scalars: dict[ForeignFunction, bool] = {}
        self.structure: Structure | None = None
        self.writes: bool | None = None
        self.seen = False
        self.plain = GuestFunction(self)
        self.keeping: Callable[..., Any] | None = None
        self.label = f"DifferentiateWith({name}, {backend.name})"


class Partial:
    """A foreign function of its floating-point arguments alone: ``(*active) -> (ys, carried)``.

    After a run, ``flags`` says which of the results are floating point.
    """

    def __init__(self, function: ForeignFunction, xs: Arrays) -> None:
        self.function = function
        self.xs = xs
        self.flags: tuple[bool, ...] = ()

    @property
    def active(self) -> Arrays:
        """The floating-point ones among the arguments."""
        return tuple(
            [x for x, spec in zip(self.xs, self.function.in_specs, strict=True) if is_inexact(spec)]
        )

    def __call__(self, *active: Array) -> tuple[Arrays, Arrays]:
        remaining = iter(active)
        xs = [
            next(remaining) if is_inexact(spec) else x
            for x, spec in zip(self.xs, self.function.in_specs, strict=True)
        ]
        outs = self.function(*xs)
        inexact = self.function.root.library.is_inexact
        self.flags = tuple([inexact(y) for y in outs])
        ys = tuple([y for y, flag in zip(outs, self.flags, strict=True) if flag])
        return ys, tuple([y for y, flag in zip(outs, self.flags, strict=True) if not flag])

    def merge(self, ys: Arrays, carried: Arrays) -> Arrays:
        """All results in their order."""
        return merge(self.flags, ys, carried)


def merge(flags: tuple[bool, ...], first: Any, second: Any) -> tuple[Any, ...]:
    """Takes from ``first`` where a flag is set, else from ``second``."""
    a, b = iter(first), iter(second)
    return tuple([next(a) if flag else next(b) for flag in flags])


class ForeignFunction(ABC):
    """A function of tuples of arrays of one guest."""

    root: Root
    order: int
    """How many derivatives have been taken of what the user wrote."""

    @property
    @abstractmethod
    def in_specs(self) -> tuple[ArraySpec, ...]:
        """Shape and dtype of each argument."""

    @property
    @abstractmethod
    def numbers(self) -> tuple[Any, ...]:
        """The Python numbers among the user's arguments: constants that need no new compilation."""

    @abstractmethod
    def bind(self, numbers: tuple[Any, ...]) -> ForeignFunction:
        """The same function with other numbers."""

    @abstractmethod
    def __call__(self, *xs: Array) -> Arrays:
        """The results for arrays of the guest; the guest can differentiate through this."""

    @abstractmethod
    def infer(self) -> tuple[ArraySpec, ...]:
        """The specifications of the results; see ``out_specs``."""

    @property
    def out_specs(self) -> tuple[ArraySpec, ...]:
        """Shape and dtype of each result, found without values where the guest can."""
        skeleton = self.skeleton
        specs = self.root.specs.get(skeleton)
        if specs is None:
            specs = self.root.specs[skeleton] = self.infer()
        return specs

    @property
    def skeleton(self) -> ForeignFunction:
        """The function with its numbers left open, so that other numbers compile nothing new."""
        return self.bind((None,) * len(self.numbers)) if self.numbers else self

    def mapped_outs(self, flags: tuple[bool, ...]) -> tuple[bool, ...]:
        """Which results depend on the arguments whose flag is set."""
        return (any(flags),) * len(self.out_specs)

    def calculus(self) -> Calculus:
        """What its derivatives are computed by."""
        root = self.root
        guest = root.guest
        if self.order == 0 or guest.nests:
            forced = root.backend.forced_mode
            modes = guest.modes if forced is None else frozenset({forced})
            return Calculus(guest, root.library, modes, root.label)
        if guest.numeric and self.order == 1:
            # The step of a central difference is far above the noise of the inner derivative.
            outer = guest_of(AutoFiniteDiff())
            return Calculus(outer, root.library, outer.modes, root.label)
        raise UnsupportedError(
            f"{root.label}: a derivative of order {self.order + 1} was asked for; {root.backend.name} gives "
            f"at most order {self.order}. Use a guest that differentiates its own derivatives: AutoJAX, "
            "AutoTorch or AutoAutograd."
        )


@dataclasses.dataclass(frozen=True, eq=False)
class GuestFunction(ForeignFunction):
    """The user's function, of the arrays among its arguments."""

    root: Root
    numbers: tuple[Any, ...] = ()  # pyright: ignore[reportIncompatibleMethodOverride] (a field for a property)

    order = 0

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, GuestFunction)
            and self.root is other.root
            and self.numbers == other.numbers
            and list(map(type, self.numbers)) == list(map(type, other.numbers))
        )

    def __hash__(self) -> int:
        return hash((id(self.root), self.numbers))

    @property
    def in_specs(self) -> tuple[ArraySpec, ...]:
        return self.root.in_specs

    def bind(self, numbers: tuple[Any, ...]) -> GuestFunction:
        return GuestFunction(self.root, numbers)

    def __call__(self, *xs: Array) -> Arrays:
        root = self.root
        arrays: list[Any] = list(xs)
        if root.numbers:
            arrays = [None] * len(root.layout.libraries)
            for i, number in zip(root.numbers, self.numbers, strict=True):
                arrays[i] = number
            for i, x in zip(root.inputs, xs, strict=True):
                arrays[i] = x
        run = Run(
            root.f, root.layout, tuple(range(len(arrays))), arrays, root.library, False, root.label, True,
            statics=True,
        )
        ys, carried = run(*arrays)
        root.structure = run.structure
        return tuple([ys[k] if k >= 0 else carried[-1 - k] for k in run.structure.kinds if k < STATIC])

    def infer(self) -> tuple[ArraySpec, ...]:
        from diface._execution import infer_specs  # not at the top: it is built on this module

        return infer_specs(self)


class _Derived(ForeignFunction):
    """What the functions made of another one have in common."""

    function: ForeignFunction

    @property
    def root(self) -> Root:  # type: ignore[override]
        return self.function.root

    @property
    def numbers(self) -> tuple[Any, ...]:
        return self.function.numbers

    @property
    def order(self) -> int:  # type: ignore[override]
        return self.function.order + 1

    def bind(self, numbers: tuple[Any, ...]) -> ForeignFunction:
        return dataclasses.replace(self, function=self.function.bind(numbers))  # type: ignore[type-var]

    def _active_in(self) -> tuple[ArraySpec, ...]:
        return tuple(spec for spec in self.function.in_specs if is_inexact(spec))

    def _active_out(self) -> tuple[ArraySpec, ...]:
        return tuple(spec for spec in self.function.out_specs if is_inexact(spec))


@dataclasses.dataclass(frozen=True)
class Joint(_Derived):
    """``(xs, txs) -> (ys, J txs)``."""

    function: ForeignFunction

    @property
    def in_specs(self) -> tuple[ArraySpec, ...]:
        return (*self.function.in_specs, *self._active_in())

    def infer(self) -> tuple[ArraySpec, ...]:
        self.function.calculus()  # refuses now, not in the middle of a compiled program
        return (*self.function.out_specs, *self._active_out())

    def mapped_outs(self, flags: tuple[bool, ...]) -> tuple[bool, ...]:
        n = len(self.function.in_specs)
        tangents = iter(flags[n:])
        moved = tuple(
            (next(tangents) or flag) if is_inexact(spec) else flag
            for flag, spec in zip(flags[:n], self.function.in_specs, strict=True)
        )
        derived = zip(self.function.mapped_outs(moved), self.function.out_specs, strict=True)
        return (*self.function.mapped_outs(flags[:n]), *(flag for flag, spec in derived if is_inexact(spec)))

    def __call__(self, *xs: Array) -> Arrays:
        n = len(self.function.in_specs)
        partial = Partial(self.function, xs[:n])
        ys, carried, tys = self.function.calculus().pushforward(partial, partial.active, xs[n:])
        return (*partial.merge(ys, carried), *tys)


@dataclasses.dataclass(frozen=True)
class Pushforward(_Derived):
    """``(xs, txs) -> J txs``."""

    function: ForeignFunction

    @property
    def in_specs(self) -> tuple[ArraySpec, ...]:
        return (*self.function.in_specs, *self._active_in())

    def infer(self) -> tuple[ArraySpec, ...]:
        self.function.calculus()  # refuses now, not in the middle of a compiled program
        return self._active_out()

    def __call__(self, *xs: Array) -> Arrays:
        n = len(self.function.in_specs)
        partial = Partial(self.function, xs[:n])
        return self.function.calculus().pushforward(partial, partial.active, xs[n:])[2]


@dataclasses.dataclass(frozen=True)
class Pullback(_Derived):
    """``(xs, cts) -> Jᵀ cts``."""

    function: ForeignFunction

    @property
    def in_specs(self) -> tuple[ArraySpec, ...]:
        return (*self.function.in_specs, *self._active_out())

    def infer(self) -> tuple[ArraySpec, ...]:
        self.function.calculus()  # refuses now, not in the middle of a compiled program
        return self._active_in()

    def __call__(self, *xs: Array) -> Arrays:
        n = len(self.function.in_specs)
        partial = Partial(self.function, xs[:n])
        return self.function.calculus().gradient(partial, partial.active, lambda ys: xs[n:])[2]


@dataclasses.dataclass(frozen=True)
class WithGradient(_Derived):
    """``(xs) -> (ys, gs)``: the results, and the gradient of the one real number among them."""

    function: ForeignFunction

    @property
    def in_specs(self) -> tuple[ArraySpec, ...]:
        return self.function.in_specs

    def infer(self) -> tuple[ArraySpec, ...]:
        self.function.calculus()  # refuses now, not in the middle of a compiled program
        return (*self.function.out_specs, *self._active_in())

    def __call__(self, *xs: Array) -> Arrays:
        partial = Partial(self.function, xs)
        ones = self.root.library.ones_like
        ys, carried, gs = self.function.calculus().gradient(
            partial, partial.active, lambda ys: tuple([ones(y) for y in ys])
        )
        return (*partial.merge(ys, carried), *gs)


def gradient_suffices(function: ForeignFunction) -> bool:
    """Whether the gradient, computed with the value, is all that the first derivative needs.

    So it is for one real number, from an engine whose reverse mode gives both in one run: then nothing of
    the run has to be kept but the gradient itself, and the derivative is an inner product with it.
    """
    root = function.root
    found = root.scalars.get(function.skeleton)
    if found is None:
        specs = [spec for spec in function.out_specs if is_inexact(spec)]
        number = len(specs) == 1 and specs[0].shape == () and "complex" not in specs[0].dtype
        found = number and not root.guest.numeric and function.calculus().reverse
        root.scalars[function.skeleton] = found
    return found


@dataclasses.dataclass(frozen=True)
class Batched(_Derived):
    """``function`` mapped over the leading axis of the arguments whose flag is set."""

    function: ForeignFunction
    axes: tuple[bool, ...]
    size: int

    @property
    def order(self) -> int:  # type: ignore[override]
        return self.function.order

    @property
    def in_specs(self) -> tuple[ArraySpec, ...]:
        return tuple(
            spec._replace(shape=(self.size, *spec.shape)) if mapped else spec
            for spec, mapped in zip(self.function.in_specs, self.axes, strict=True)
        )

    def infer(self) -> tuple[ArraySpec, ...]:
        return tuple(spec._replace(shape=(self.size, *spec.shape)) for spec in self.function.out_specs)

    def __call__(self, *xs: Array) -> Arrays:
        library = self.root.library
        mapped = self.root.guest.vectorize(self.function, self.axes)
        if mapped is not None:
            return mapped(*xs)
        if self.size == 0:
            return tuple(library.zeros(spec) for spec in self.out_specs)
        rows = [
            self.function(*[x[i] if flag else x for x, flag in zip(xs, self.axes, strict=True)])
            for i in range(self.size)
        ]
        return tuple(library.namespace(parts[0]).stack(parts) for parts in zip(*rows, strict=True))


@dataclasses.dataclass(frozen=True)
class Frozen(_Derived):
    """``function``, where the arguments whose flag is set are constants."""

    function: ForeignFunction
    flags: tuple[bool, ...]

    @property
    def order(self) -> int:  # type: ignore[override]
        return self.function.order

    @property
    def in_specs(self) -> tuple[ArraySpec, ...]:
        return tuple(
            spec._replace(library=_CONSTANT) if frozen else spec
            for spec, frozen in zip(self.function.in_specs, self.flags, strict=True)
        )

    def infer(self) -> tuple[ArraySpec, ...]:
        return self.function.out_specs

    def mapped_outs(self, flags: tuple[bool, ...]) -> tuple[bool, ...]:
        return self.function.mapped_outs(flags)

    def __call__(self, *xs: Array) -> Arrays:
        return self.function(*xs)


def freeze(function: ForeignFunction, needed: Sequence[bool]) -> ForeignFunction:
    """``function`` with all arguments frozen that have a derivative but are not ``needed``."""
    flags = tuple([is_inexact(spec) and not need for spec, need in zip(function.in_specs, needed, strict=True)])
    return Frozen(function, flags) if any(flags) else function
