"""``check_wrapped``: every scenario as a function that its host cannot see into.

The idea is that of DifferentiationInterface.jl's tests of its own ``DifferentiateWith``: make a
function opaque to the host, see that the host fails on it, wrap it, and see that it passes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

from diface import _pytree
from diface._differentiate_with import DifferentiateWith
from diface._engine import Host
from diface._exchange import library_of
from diface._operators import jacobian
from diface._registry import backend_of, guest_of
from diface._specs import Backend
from diface.testing._callers import Caller, caller_of
from diface.testing._capabilities import Gaps, gap_of
from diface.testing._cases import Case
from diface.testing._check import ConformanceResult, run_cases
from diface.testing._defaults import default_scenarios
from diface.testing._failures import ConformanceError, Failure, label_of
from diface.testing._scenario import OPERATORS, Scenario

__all__ = ["OpaqueError", "check_wrapped", "wrapped_cases"]


class OpaqueError(TypeError):
    """A host has tried to see into a function that is opaque to it."""


class _Opaque:
    """``f``, refusing to be run on what one of the hosts is following."""

    def __init__(self, f: Any, hosts: tuple[Host, ...]) -> None:
        self.f = f
        self.hosts = hosts

    def __call__(self, *args: Any) -> Any:
        for leaf in _pytree.flatten(args)[0]:
            library = library_of(leaf)
            if library is not None and library.host in self.hosts and library.host.follows(leaf):
                raise OpaqueError(f"{library.name} looks into a function that it should not see into")
        return self.f(*args)


def wrapped_cases(
    hosts: Iterable[Backend | str],
    guests: Iterable[Backend | str],
    scenarios: Iterable[Scenario] | None = None,
    *,
    depth: int = 1,
    callers: Iterable[str | Caller] = ("numpy",),
    operators: Iterable[str] | None = None,
    gaps: Gaps | None = None,
) -> list[Case]:
    """One case for each host, chain of guests, scenario, operator and caller, for parametrised tests.

    Args:
        hosts: The engines that differentiate the program.
        guests: The engines that differentiate the opaque function in it.
        scenarios: The scenarios; ``default_scenarios()`` if ``None``.
        depth: How many guests deep: 2 gives ``host ← guest ← guest`` for every pair of guests.
        callers: As for ``cases``.
        operators: As for ``cases``.
        gaps: As for ``cases``; a gap of any engine in the chain is one of the chain.

    Returns:
        The cases; see ``cases``.
    """
    chosen = default_scenarios() if scenarios is None else tuple(scenarios)
    wanted = tuple(OPERATORS) if operators is None else tuple(operators)
    found = []
    for host in map(backend_of, hosts):
        for chain in itertools.product(tuple(map(backend_of, guests)), repeat=depth):
            for scenario, caller in itertools.product(chosen, map(caller_of, callers)):
                wrapped = dataclasses.replace(scenario, f=wrap(scenario.f, host, chain))
                for name in scenario.operators:
                    if name in wanted:
                        reasons = [gap_of(engine, scenario, name, gaps or {}) for engine in (host, *chain)]
                        gap = next((reason for reason in reasons if reason is not None), None)
                        found.append(Case(host, wrapped, name, caller, gap, guests=chain))
    return found


def wrap(f: Any, host: Backend, chain: tuple[Backend, ...]) -> Any:
    """``f`` differentiated by the last of ``chain`` inside the one before, and so on; opaque to all others."""
    engines = (host, *chain)
    libraries = [guest_of(engine).library for engine in engines]
    own = libraries[-1]
    others = tuple(
        library.host for library in libraries[:-1] if library is not None and library is not own and library.host
    )
    wrapped: Any = _Opaque(f, others)
    for guest in reversed(chain):
        wrapped = DifferentiateWith(wrapped, guest)
    return wrapped


def check_wrapped(
    hosts: Iterable[Backend | str],
    guests: Iterable[Backend | str],
    scenarios: Iterable[Scenario] | None = None,
    *,
    depth: int = 1,
    callers: Iterable[str | Caller] = ("numpy",),
    operators: Iterable[str] | None = None,
    gaps: Gaps | None = None,
) -> ConformanceResult:
    """Checks that every host differentiates through every guest by ``DifferentiateWith``.

    Each scenario's function is made opaque to the host. The host must fail on it as it is, and pass all
    checks of ``check_differentiation`` when it is wrapped.

    Args:
        hosts: The engines that differentiate the program, as instances or short names.
        guests: The engines that differentiate the opaque function in it.
        scenarios: The scenarios; ``default_scenarios()`` if ``None``.
        depth: How many guests deep: 2 checks ``host ← guest ← guest`` for every pair of guests.
        callers: Whose arrays are passed.
        operators: The operators to check; all if ``None``.
        gaps: What backends cannot do: ``{backend name: {need: reason}}``.

    Returns:
        How many cases ran, and which did not, with the reason.

    Raises:
        ConformanceError: Some checks failed; it lists all of them.

    Example:
        >>> import numpy as np
        >>> square = Scenario("square", lambda x: (x * x).sum(), (np.array([1.0, 2.0]),),
        ...                   {"value": np.array(5.0), "gradient": np.array([2.0, 4.0])})
        >>> check_wrapped(["finite_diff"], ["complex_step"], [square]).total
        2
    """
    chosen = default_scenarios() if scenarios is None else tuple(scenarios)
    found = wrapped_cases(hosts, guests, chosen, depth=depth, callers=callers, operators=operators, gaps=gaps)
    for case in found:
        must_be_opaque(case)
    return run_cases(found)


def must_be_opaque(case: Case) -> None:
    """Raises unless the host fails on the case's function where it is not wrapped."""
    function: Any = case.scenario.f
    while isinstance(function, DifferentiateWith):
        function = function.f
    host = guest_of(case.backend).library
    if host is None or host.host not in function.hosts:
        return  # a numeric host looks into no function, and an engine is no stranger to itself
    args = tuple(case.caller.bring(arg) for arg in case.scenario.args)
    try:
        jacobian(function, case.backend, *args, argnums=case.scenario.argnums, has_aux=case.scenario.has_aux)
    except OpaqueError:
        return
    raise ConformanceError(
        [
            Failure(
                label_of(case.backend), case.scenario.name, case.operator, case.caller.name, "opaque",
                "the host has differentiated a function that it should not see into",
            )
        ],
        1,
    )
