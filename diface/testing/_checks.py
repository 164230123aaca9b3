"""All that is checked of one case."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

import diface
from diface import _pytree
from diface._exchange import library_of
from diface._registry import guest_of
from diface.testing._capabilities import tolerance_of
from diface.testing._compare import as_numpy, inner, mismatches, same, snapshot
from diface.testing._failures import Failure, label_of
from diface.testing._scenario import OPERATORS, map_arrays

if TYPE_CHECKING:
    from diface.testing._cases import Case

__all__ = ["Checks"]


class Checks:
    """One run of a case's checks."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.scenario = case.scenario
        self.call = OPERATORS[case.operator]
        self.failures: list[Failure] = []
        bring = case.caller.bring
        # Fresh arrays: an engine that writes into them must not spoil the scenario for others.
        self.args = tuple(bring(arg) for arg in self.scenario.args)
        self.typical = tuple(bring(arg) for arg in self.scenario.typical)
        vector = getattr(self.scenario, self.call.vector) if self.call.vector else None
        self.vector = bring(vector)
        self.other_vector = bring(map_arrays(lambda v: v * 3, vector))
        self.device = self._device()
        self.options: dict[str, Any] = {"argnums": self.scenario.argnums, "has_aux": self.scenario.has_aux}

    def _device(self) -> str | None:
        for x in _pytree.flatten(self.args)[0]:
            library = library_of(x)
            if library is not None and library is library_of(self.case.caller.into(np.zeros(1))):
                return library.describe(x).device
        return None

    def fail(self, check: str, detail: str) -> None:
        case = self.case
        names = label_of(case.backend), self.scenario.name, case.operator, case.caller.name
        self.failures.append(Failure(*names, check, detail))

    def all(self) -> None:
        before = snapshot((self.args, self.vector), self.case.caller)
        result = self.unprepared()
        self.prepared(result)
        if snapshot((self.args, self.vector), self.case.caller) != before:
            self.fail("inputs unchanged", "an argument or vector was written into")
        if self.case.operator == "value_and_pullback":
            self.adjoint()
        if self.case.operator == "value_and_pullback_function":
            self.runs_once()
        if "hessian" in self.call.parts:
            self.symmetric(result)
        if self.scenario.differences and self.case.operator == "value_and_pushforward":
            self.differences(result)

    # ---- the checks --------------------------------------------------------------------------

    def unprepared(self) -> Any:
        first = self.operate(self.args, self.vector)
        self.compare("value", first)
        self.own_memory(first)
        # A copy: what the second call overwrites in memory that it shares with the first would not show.
        kept = snapshot(first, self.case.caller)
        again = self.operate(self.args, self.vector)
        if snapshot(first, self.case.caller) != kept:
            self.fail("called twice", "the second call wrote into the result of the first")
        if not same(first, again, self.case.caller):
            self.fail("called twice", f"first {first}, then {again}")
        return first

    def prepared(self, unprepared: Any) -> None:
        case = self.case
        keywords = dict(self.options)
        if self.call.keyword is not None:
            keywords |= {self.call.keyword: self.other_vector, "batched": self.call.batched}
        prep = diface.prepare(self.call.operator, self.scenario.f, case.backend, *self.typical, **keywords)
        given = {self.call.keyword: self.vector} if self.call.keyword is not None else {}
        result = self.finish(prep(*self.args, **given))
        self.compare("prepared at other values", result)
        # Compiled anew, sums may be ordered otherwise.
        if not same(unprepared, result, case.caller, self.tolerance(0)):
            self.fail("prepared equals unprepared", f"unprepared {unprepared}, prepared {result}")
        for name, again in (
            ("prepared, called twice", self.finish(prep(*self.args, **given))),
            ("prep=", self.operate(self.args, self.vector, prep=prep)),
        ):
            if not same(result, again, case.caller):
                self.fail(name, f"first {result}, then {again}")

    def adjoint(self) -> None:
        """⟨w, Jv⟩ = ⟨Jᵀw, v⟩ for random v and w."""
        case, scenario = self.case, self.scenario
        rng = np.random.default_rng([case.seed, zlib.crc32(str(case).encode())])
        v = map_arrays(lambda x: _random_like(rng, x), scenario.expected["pullback"])
        w = map_arrays(lambda y: _random_like(rng, y), scenario.expected["value"])
        bring = case.caller.bring
        push: Any = diface.pushforward(scenario.f, case.backend, *self.args, tangent=bring(v), **self.options)
        pull: Any = diface.pullback(scenario.f, case.backend, *self.args, cotangent=bring(w), **self.options)
        if scenario.has_aux:
            push, pull = push[0], pull[0]
        tangents, cotangents = as_numpy(v, case.caller), as_numpy(w, case.caller)
        Jv, Jw = as_numpy(push, case.caller), as_numpy(pull, case.caller)
        left, right = inner(cotangents, Jv), inner(Jw, tangents)
        scale = _norm(cotangents) * _norm(Jv) + _norm(Jw) * _norm(tangents)
        if not abs(left - right) <= self.tolerance(1) * scale + self.absolute(1):
            self.fail("adjoint", f"expected <w, Jv> = <J'w, v>, came {left} and {right}")

    def runs_once(self) -> None:
        """The function runs once, and never again however often its pullback is called."""
        case, calls = self.case, 0

        def counted(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            return self.scenario.f(*args)

        # The first call may run f on tracers, to compile it or to find that this cannot be done.
        diface.value_and_pullback_function(counted, case.backend, *self.args, **self.options)
        calls = 0
        pull = diface.value_and_pullback_function(counted, case.backend, *self.args, **self.options)[1]
        before = calls
        pull(self.vector)
        pull(self.other_vector)
        if calls != before:
            self.fail("pull runs f no more", f"two calls of the pullback ran f {calls - before} time(s)")
        guest = guest_of(case.backend)
        if guest.once and "reverse" in guest.modes and case.backend.forced_mode != "forward" and before > 1:
            self.fail("f runs once", f"f ran {before} times for a value and its pullback")

    def symmetric(self, result: Any) -> None:
        """H = Hᵀ, over all pairs of leaves."""
        parts = result[0] if self.scenario.has_aux and len(self.call.parts) == 1 else result
        hessian = parts if len(self.call.parts) == 1 else parts[self.call.parts.index("hessian")]
        blocks = as_numpy(hessian, self.case.caller)
        sizes = [x.size for x in as_numpy(self.scenario.expected["gradient"], self.case.caller)]
        count = len(sizes)
        H = np.block(
            [[blocks[i * count + j].reshape(m, n) for j, n in enumerate(sizes)] for i, m in enumerate(sizes)]
        )
        scale = np.max(np.abs(H), initial=0.0)
        gap = np.max(np.abs(H - H.T), initial=0.0)
        if not gap <= self.tolerance(2) * scale + self.absolute(2):
            self.fail("symmetric Hessian", f"H and its transpose differ by {gap} of {scale}")

    def differences(self, result: Any) -> None:
        """The pushforward against central differences of f, by NumPy alone."""
        scenario = self.scenario
        x, t = scenario.args[0].astype("float64"), scenario.tangent.astype("float64")
        constants = [np.asarray(c, "float64") for c in scenario.args[1:]]
        h = 1e-5
        ty = (scenario.f(x + h * t, *constants) - scenario.f(x - h * t, *constants)) / (2 * h)
        came = as_numpy(result[1], self.case.caller)[0]
        tolerance = max(self.tolerance(1), 1e-7) * max(np.max(np.abs(ty)), 1.0)
        if not np.max(np.abs(ty - came)) <= tolerance:
            self.fail("central differences", f"expected {ty}, came {came}")

    # ---- doing it ----------------------------------------------------------------------------

    def operate(self, args: tuple[Any, ...], vector: Any, **keywords: Any) -> Any:
        operator = getattr(diface, self.call.operator)
        keywords |= self.options
        if self.call.keyword is not None:
            keywords |= {self.call.keyword: vector, "batched": self.call.batched}
        return self.finish(operator(self.scenario.f, self.case.backend, *args, **keywords))

    def finish(self, result: Any) -> Any:
        """``result`` with its linear map, if it has one, applied (twice: it may be called again)."""
        if not self.call.linear:
            return result
        y, linear = result
        first = linear(self.vector)
        linear(self.other_vector)
        if not same(first, linear(self.vector), self.case.caller):
            self.fail("map called twice", "a linear map gave something else when it was called again")
        return y, first

    def compare(self, check: str, result: Any) -> None:
        expected = self.scenario.result_of(self.call)
        order = self.call.order
        for part, wanted, came in _parts(self.call.parts, self.scenario.has_aux, expected, result):
            n = min(_ORDERS.get(part, 1), order)
            for line in mismatches(
                wanted, came, self.tolerance(n), self.absolute(n), self.case.caller, self.device
            ):
                self.fail(check, f"{part}: {line}")

    def own_memory(self, result: Any) -> None:
        """NumPy results may be written into: that must not change an argument."""
        given = [x for x in _pytree.flatten((self.args, self.vector))[0] if isinstance(x, np.ndarray)]
        came = [x for x in _pytree.flatten(result)[0] if isinstance(x, np.ndarray)]
        if any(np.may_share_memory(a, b) for a in given for b in came):
            self.fail("own memory", "a result shares the memory of an argument")

    def tolerance(self, order: int) -> float:
        return self.case.rtol if self.case.rtol is not None else self.absolute(order)

    def absolute(self, order: int) -> float:
        if self.case.atol is not None:
            return self.case.atol
        engines = (self.case.backend, *self.case.guests)
        loosest = max(tolerance_of(engine, self.scenario, order) for engine in engines)
        return 10 * loosest if self.case.guests else loosest  # one engine's rounding goes through another


_ORDERS = {"value": 0, "aux": 0, "hvp": 2, "batched_hvp": 2, "hessian": 2, "second_derivative": 2}


def _parts(names: tuple[str, ...], has_aux: bool, expected: Any, came: Any) -> list[tuple[str, Any, Any]]:
    """Pairs to be compared part by part, where the result has the right form at all."""
    if len(names) == 1 and not has_aux:
        return [(names[0], expected, came)]
    whole = [("result", expected, came)]
    if len(names) == 1:
        names = (names[0], "aux")
    elif has_aux:
        if not (_is_tuple(came, len(names)) and _is_tuple(came[0], 2)):
            return whole
        first, last = ([e[0][0], e[0][1], *e[1:]] for e in (expected, came))
        return list(zip((names[0], "aux", *names[1:]), first, last, strict=True))
    if not _is_tuple(came, len(names)):
        return whole
    return list(zip(names, expected, came, strict=True))


def _is_tuple(value: Any, length: int) -> bool:
    return isinstance(value, tuple) and len(value) == length


def _norm(arrays: list[Any]) -> float:
    return float(np.sqrt(sum(np.sum(np.abs(a.astype("complex128")) ** 2) for a in arrays)))


def _random_like(rng: np.random.Generator, x: Any) -> Any:
    array = np.asarray(x)
    values = rng.standard_normal(array.shape)
    if array.dtype.kind == "c":
        values = values + 1j * rng.standard_normal(array.shape)
    values = np.asarray(values).astype(array.dtype)
    if isinstance(x, np.ndarray):
        return values
    return values[()] if isinstance(x, np.generic) else values.item()
