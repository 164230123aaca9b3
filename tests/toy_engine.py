"""A third party's whole engine on a page: dual numbers over NumPy, forward mode alone.

Core derives the rest (gradients, pullbacks, Hessians), and the suite checks it; see ``test_toy_engine.py``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from diface.extend import Arrays, ArraySpec, Backend, Function, Guest, NumpyLibrary, PullbackMap, Results

PARTIALS: dict[Any, tuple[Callable[..., Any], ...]] = {
    np.add: (lambda y, a, b: 1, lambda y, a, b: 1),
    np.subtract: (lambda y, a, b: 1, lambda y, a, b: -1),
    np.multiply: (lambda y, a, b: b, lambda y, a, b: a),
    np.power: (lambda y, a, b: b * a ** (b - 1), lambda y, a, b: y * np.log(a)),
    np.negative: (lambda y, a: -1,),
    np.sin: (lambda y, a: np.cos(a),),
    np.cos: (lambda y, a: -np.sin(a),),
}
LINEAR: tuple[Any, ...] = (np.conjugate, np.matmul)
_levels = itertools.count(1)


class Dual(np.lib.mixins.NDArrayOperatorsMixin):
    """``value + ε tangent``; the level keeps the ε of nested derivatives apart."""

    def __init__(self, value: Any, tangent: Any, level: int) -> None:
        self.value, self.tangent, self.level = value, tangent, level
        self.shape, self.dtype, self.ndim = value.shape, value.dtype, len(value.shape)

    def __getitem__(self, index: Any) -> Dual:
        return Dual(self.value[index], self.tangent[index], self.level)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __array_ufunc__(self, ufunc: Any, method: str, *xs: Any, **keywords: Any) -> Any:
        level = max(x.level for x in xs if isinstance(x, Dual))
        values = [part(x, level, "value") for x in xs]
        y = ufunc(*values)
        if ufunc in LINEAR:  # linear in each argument
            terms = [
                ufunc(*values[:i], x.tangent, *values[i + 1 :])
                for i, x in enumerate(xs) if at(x, level)
            ]  # fmt: skip
        elif ufunc in PARTIALS:
            rules = zip(xs, PARTIALS[ufunc], strict=True)
            terms = [rule(y, *values) * x.tangent for x, rule in rules if at(x, level)]
        else:
            return y  # comparisons
        return Dual(y, sum(terms, start=np.zeros(y.shape, y.dtype)), level)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        nested = args[0] if isinstance(args[0], (list, tuple)) else args
        level = max(x.level for x in nested if isinstance(x, Dual))
        y = function(*part(args, level, "value"), **keywords)
        if function in (np.zeros_like, np.ones_like):
            return y
        if function is np.where:  # linear in its branches
            return Dual(y, np.where(strip(args[0]), *part(args[1:], level, "tangent")), level)
        return Dual(y, function(*part(args[:1], level, "tangent"), *args[1:], **keywords), level)


def at(x: Any, level: int) -> bool:
    return isinstance(x, Dual) and x.level == level


def part(x: Any, level: int, name: str) -> Any:
    """The values or the tangents in ``x``; what is not of this level is constant."""
    if isinstance(x, (list, tuple)):
        return type(x)(part(e, level, name) for e in x)
    if at(x, level):
        return getattr(x, name)
    return x if name == "value" else np.zeros_like(x)


def strip(x: Any) -> Any:
    return strip(x.value) if isinstance(x, Dual) else x


class DualLibrary(NumpyLibrary):
    """NumPy arrays and dual numbers."""

    name = "dual"

    def owns(self, kind: type) -> bool:
        return issubclass(kind, Dual)

    def describe(self, x: Any) -> ArraySpec:
        return ArraySpec(self.name, x.shape, x.dtype.name, "traced" if isinstance(x, Dual) else "cpu")

    def is_traced(self, x: Any) -> bool:
        return isinstance(x, Dual)

    def protect(self, x: Any) -> Any:
        return super().protect(x) if isinstance(x, np.ndarray) else x


DUAL = DualLibrary()


@dataclasses.dataclass(frozen=True)
class AutoDual(Backend):
    """The description of the engine, which users pass as ``backend``."""

    name: ClassVar[str] = "dual"
    distribution: ClassVar[str] = "toy-engine"
    supported_modes: ClassVar[tuple[str, ...]] = ("forward",)


class DualGuest(Guest):
    """Differentiates functions written with NumPy, by dual numbers."""

    specification: ClassVar[type[Backend]] = AutoDual
    name = "dual"
    library = DUAL
    modes = frozenset({"forward"})
    nests = True

    def value_and_pushforward(self, function: Function, xs: Arrays, txs: Arrays) -> Results:
        level = next(_levels)
        ys, aux = function(*[Dual(x, t, level) for x, t in zip(xs, txs, strict=True)])
        values, tangents = part(ys, level, "value"), part(ys, level, "tangent")
        return arrays(values), part(aux, level, "value"), arrays(tangents)

    def value_and_pullback(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, PullbackMap]:
        raise NotImplementedError("dual numbers have no reverse mode; core derives it from pushforwards")


def arrays(xs: Arrays) -> Arrays:
    return tuple(x if isinstance(x, Dual) else np.asarray(x) for x in xs)
