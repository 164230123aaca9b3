"""Engines that are wrong on purpose, each in one way: the suite must reject every one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from diface.extend import Arrays, Backend, Function, PullbackMap, Results, writable_alias
from tests.toy_engine import DUAL, Dual, DualGuest

__all__ = ["DUAL", "ChangesInput", "Honest", "IgnoresCotangent", "Stale", "WrongDtype", "WrongSign"]


def _specification(label: str) -> type[Backend]:
    @dataclasses.dataclass(frozen=True)
    class Specification(Backend):
        name: ClassVar[str] = label

    return Specification


class Honest(DualGuest):
    """The control: the same engine without a lie."""

    specification = _specification("honest")


class WrongSign(DualGuest):
    """Derivatives with the wrong sign."""

    specification = _specification("wrong_sign")

    def value_and_pushforward(self, function: Function, xs: Arrays, txs: Arrays) -> Results:
        ys, aux, tys = super().value_and_pushforward(function, xs, txs)
        return ys, aux, tuple(-t for t in tys)


class ChangesInput(DualGuest):
    """Writes into the caller's memory once it is done, as compiled code could."""

    specification = _specification("changes_input")

    def value_and_pushforward(self, function: Function, xs: Arrays, txs: Arrays) -> Results:
        results = super().value_and_pushforward(function, xs, txs)
        for x in xs:
            if not isinstance(x, Dual):
                writable_alias(np.asarray(x))[...] += 1
        return results


class WrongDtype(DualGuest):
    """Results in another precision than the arguments."""

    specification = _specification("wrong_dtype")

    def release(self, x: Any, result: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return result.astype("float32" if result.dtype == "float64" else "float64")


class IgnoresCotangent(DualGuest):
    """A reverse mode that gives the pullback of ones whatever the cotangent."""

    specification = _specification("ignores_cotangent")
    modes = frozenset({"reverse"})

    def value_and_pullback(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, PullbackMap]:
        ys, aux = function(*xs)

        def pull(cotangents: Arrays) -> Arrays:
            return tuple(self._sum_of_columns(function, xs, k) for k in range(len(xs)))

        return tuple(map(np.asarray, ys)), aux, pull

    def _sum_of_columns(self, function: Function, xs: Arrays, k: int) -> Any:
        result = np.zeros_like(xs[k])
        for index in np.ndindex(result.shape):
            tangents = [np.zeros_like(x) for x in xs]
            tangents[k][index] = 1
            _, _, tys = self.value_and_pushforward(function, xs, tuple(tangents))
            result[index] = sum(np.sum(t) for t in tys)
        return result


class Stale(DualGuest):
    """Keeps the numbers that it was prepared with."""

    specification = _specification("stale")

    def compile(self, run: Callable[..., Any]) -> Callable[..., Any]:
        kept: list[Any] = []

        def replay(*arrays: Any) -> Any:
            if not kept:
                kept.append(run(*arrays))
            return kept[0]

        return replay
