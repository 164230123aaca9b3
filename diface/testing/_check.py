"""``check_differentiation``: every case of every backend, all failures in one report."""

from __future__ import annotations

import collections
import dataclasses
import fnmatch
from collections.abc import Collection, Iterable

from diface._specs import Backend
from diface.testing._callers import Caller
from diface.testing._capabilities import Gaps
from diface.testing._cases import Case, cases
from diface.testing._failures import ConformanceError, Failure, label_of
from diface.testing._scenario import Scenario

__all__ = ["ConformanceResult", "Gap", "check_differentiation"]


@dataclasses.dataclass(frozen=True)
class Gap:
    """A case that a backend is not held to, and why."""

    case: str
    reason: str


@dataclasses.dataclass(frozen=True)
class ConformanceResult:
    """What was checked.

    Attributes:
        counts: Backend and operator → number of cases that ran, and passed.
        gaps: The cases that did not run because a gap is declared.
        excluded: The cases that did not run because they were excluded.
    """

    counts: dict[tuple[str, str], int]
    gaps: tuple[Gap, ...]
    excluded: tuple[str, ...]

    @property
    def total(self) -> int:
        """The number of cases that ran."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        lines = [f"{self.total} cases passed; {len(self.gaps)} declared gaps; {len(self.excluded)} excluded"]
        lines += [f"  {backend}, {operator}: {count}" for (backend, operator), count in self.counts.items()]
        reasons = collections.Counter((gap.case.partition("-")[0], gap.reason) for gap in self.gaps)
        lines += [f"  {backend}: {count} not run: {reason}" for (backend, reason), count in reasons.items()]
        return "\n".join(lines)


def check_differentiation(
    backends: Iterable[Backend | str],
    scenarios: Iterable[Scenario] | None = None,
    *,
    excluded: Iterable[str] = (),
    callers: Iterable[str | Caller] = ("numpy",),
    operators: Iterable[str] | None = None,
    gaps: Gaps | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
) -> ConformanceResult:
    """Checks that backends differentiate, prepare and hand over arrays as they must.

    For each backend, scenario and operator: the value; structure, library, dtype and device as they
    came in; the same prepared at other values, and called twice; arguments unchanged, bytewise;
    ``⟨w, Jv⟩ = ⟨Jᵀw, v⟩`` for random ``v`` and ``w``; ``H = Hᵀ``.

    Args:
        backends: The engines, as instances or short names.
        scenarios: The scenarios; ``default_scenarios()`` if ``None``.
        excluded: Patterns (``fnmatch``) of cases not to run, as ``str(case)`` names them; each must
            match one.
        callers: Whose arrays are passed: ``"numpy"``, the name of an engine with arrays of its own,
            or a ``Caller``.
        operators: The operators to check; all if ``None``.
        gaps: What backends cannot do: ``{backend name: {need: reason}}``, with the needs of scenarios.
        rtol: A relative tolerance (of the largest element) that replaces the engine's own.
        atol: An absolute tolerance that replaces the engine's own.
        seed: The seed of the random vectors.

    Returns:
        How many cases ran for each backend and operator, and which did not, with the reason.

    Raises:
        ConformanceError: Some checks failed; it lists all of them.
        BackendNotInstalledError: An engine is missing.

    Example:
        >>> import numpy as np
        >>> square = Scenario("square", lambda x: (x * x).sum(), (np.array([1.0, 2.0]),),
        ...                   {"value": np.array(5.0), "gradient": np.array([2.0, 4.0])})
        >>> print(check_differentiation(["finite_diff"], [square]))
        2 cases passed; 0 declared gaps; 0 excluded
          finite_diff, gradient: 1
          finite_diff, value_and_gradient: 1
    """
    found = cases(
        backends, scenarios, callers=callers, operators=operators, gaps=gaps, rtol=rtol, atol=atol, seed=seed
    )
    return run_cases(found, _matching(found, tuple(excluded)))


def run_cases(found: Iterable[Case], left_out: Collection[str] = ()) -> ConformanceResult:
    """Runs the cases but those ``left_out``; raises one error with all failures."""
    failures: list[Failure] = []
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    declared = []
    for case in found:
        name = str(case)
        if name in left_out:
            continue
        if case.gap is not None:
            declared.append(Gap(name, case.gap))
            continue
        failures += case.run()
        counts[label_of(case.backend), case.operator] += 1
    if failures:
        raise ConformanceError(failures, counts.total())
    return ConformanceResult(dict(counts), tuple(declared), tuple(left_out))


def _matching(found: list[Case], patterns: tuple[str, ...]) -> list[str]:
    names = [str(case) for case in found]
    matched: dict[str, None] = {}
    for pattern in patterns:
        hits = fnmatch.filter(names, pattern)
        if not hits:
            raise ValueError(
                f"check_differentiation: excluded={pattern!r} matches no case. "
                f"Cases are named like {names[0] if names else 'backend-scenario-operator-caller'!r}."
            )
        matched.update(dict.fromkeys(hits))
    return list(matched)
