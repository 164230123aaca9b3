"""A ``Case``: one backend, scenario, operator and caller; and the list of all of them."""

from __future__ import annotations

import dataclasses
import traceback
import warnings
from collections.abc import Iterable

import numpy as np

from diface import _pytree
from diface._registry import backend_of, guest_of
from diface._specs import Backend
from diface.errors import PerformanceWarning, UntracedOutputWarning
from diface.testing._callers import Caller, caller_of
from diface.testing._capabilities import Gaps, gap_of
from diface.testing._checks import Checks
from diface.testing._defaults import default_scenarios
from diface.testing._failures import ConformanceError, Failure, label_of
from diface.testing._scenario import OPERATORS, Scenario

__all__ = ["Case", "cases"]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One operator of one scenario, by one backend, called with one kind of arrays.

    Args:
        backend: The engine.
        scenario: The scenario.
        operator: The operator's name in the suite (``batched_*`` for ``batched=True``).
        caller: Whose arrays are passed.
        gap: Why the engine is not held to it, as declared; ``None``: it is.
        rtol: A relative tolerance that replaces the engine's own.
        atol: An absolute tolerance that replaces the engine's own.
        seed: The seed of the random vectors.
        guests: The engines that differentiate the scenario's function inside ``backend``, outermost
            first (see ``check_wrapped``); none where it is ``backend`` alone.
    """

    backend: Backend
    scenario: Scenario
    operator: str
    caller: Caller
    gap: str | None = None
    rtol: float | None = None
    atol: float | None = None
    seed: int = 0
    guests: tuple[Backend, ...] = ()

    def __str__(self) -> str:
        name = self.scenario.name.replace(" ", "_")
        engines = "<".join(map(label_of, (self.backend, *self.guests)))
        return f"{engines}-{name}-{self.operator}-{self.caller.name}"

    def check(self) -> None:
        """Runs the checks.

        Raises:
            ConformanceError: Some failed; it tells all of them.
        """
        failures = self.run()
        if failures:
            raise ConformanceError(failures, 1)

    def run(self) -> list[Failure]:
        """Runs the checks and returns those that failed."""
        run = Checks(self)
        with warnings.catch_warnings():
            # Both say what is known here: a derived mode is exact, and a constant has no derivative.
            warnings.simplefilter("ignore", PerformanceWarning)
            warnings.simplefilter("ignore", UntracedOutputWarning)
            try:
                run.all()
            except Exception as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                run.fail("raised", f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})")
        return run.failures


def cases(
    backends: Iterable[Backend | str],
    scenarios: Iterable[Scenario] | None = None,
    *,
    callers: Iterable[str | Caller] = ("numpy",),
    operators: Iterable[str] | None = None,
    gaps: Gaps | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
) -> list[Case]:
    """One case for each backend, scenario, operator and caller, for parametrised tests.

    Args:
        backends: The engines, as instances or short names.
        scenarios: The scenarios; ``default_scenarios()`` if ``None``.
        callers: Whose arrays are passed: ``"numpy"``, the name of an engine with arrays of its own,
            or a ``Caller``. Scenarios without arrays are run for the first caller only.
        operators: The operators to check, by their names in the suite; all if ``None``.
        gaps: What backends cannot do: ``{backend name: {need: reason}}``.
        rtol: A relative tolerance that replaces the engine's own.
        atol: An absolute tolerance that replaces the engine's own.
        seed: The seed of the random vectors.

    Returns:
        The cases: ``str(case)`` is an identifier, ``case.check()`` runs it, and ``case.gap`` says why
        the engine is not held to it, if it is not.

    Example:
        >>> import numpy as np
        >>> square = Scenario("square", lambda x: (x * x).sum(), (np.array([1.0, 2.0]),),
        ...                   {"value": np.array(5.0), "gradient": np.array([2.0, 4.0])})
        >>> for case in cases(["finite_diff"], [square]):
        ...     case.check()
        ...     print(case)
        finite_diff-square-gradient-numpy
        finite_diff-square-value_and_gradient-numpy
    """
    chosen = default_scenarios() if scenarios is None else tuple(scenarios)
    wanted = tuple(OPERATORS) if operators is None else tuple(operators)
    unknown = sorted(set(wanted) - set(OPERATORS))
    if unknown:
        raise ValueError(f"cases: operator {unknown[0]!r} is not known. Use one of: {', '.join(OPERATORS)}.")
    found = []
    for spec in map(backend_of, backends):
        guest_of(spec)  # an engine that is not installed is an error, not an empty list
        for number, caller in enumerate(map(caller_of, callers)):
            found += [
                Case(spec, scenario, name, caller, gap_of(spec, scenario, name, gaps or {}), rtol, atol, seed)
                for scenario in chosen
                if number == 0 or _has_array(scenario)
                for name in scenario.operators
                if name in wanted
            ]
    return found


def _has_array(scenario: Scenario) -> bool:
    return any(isinstance(x, np.ndarray) for x in _pytree.flatten(scenario.args)[0])
