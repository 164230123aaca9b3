"""What engines cannot do, and how exact they are: declared here, never found out by failing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from diface._registry import guest_of
from diface._specs import AutoFiniteDiff, Backend
from diface.testing._scenario import OPERATORS, Scenario

__all__ = ["Gaps", "gap_of", "tolerance_of"]

Gaps = Mapping[str, Mapping[str, str]]
"""Name of a backend → need → why it cannot be met."""

BUILT_IN: Gaps = {
    "complex_step": {
        "complex": "the imaginary part carries the derivative, so arguments must be real",
        "hermitian": "eigh of a complex matrix conjugates one triangle, which is not analytic",
    },
}


def _needs(scenario: Scenario, operator: str) -> frozenset[str]:
    needs = set(scenario.needs)
    if OPERATORS[operator].order == 2:
        needs.add("second order")
    if "complex" in needs and "jacobian" in operator:
        needs.add("complex jacobian")
    return frozenset(needs)


def gap_of(backend: Backend, scenario: Scenario, operator: str, declared: Gaps) -> str | None:
    """Why ``backend`` cannot be held to this case, as declared; ``None`` if it can."""
    gaps = {**BUILT_IN.get(backend.name, {}), **declared.get(backend.name, {})}
    if backend.forced_mode == "reverse":
        gaps["complex jacobian"] = "a complex Jacobian is taken in forward mode, and mode='reverse' is forced"
    reasons = [f"{need}: {gaps[need]}" for need in sorted(_needs(scenario, operator)) if need in gaps]
    return "; ".join(reasons) or None


class _Accuracy(NamedTuple):
    """Relative tolerances of first and second derivatives, by precision."""

    double: tuple[float, float]
    single: tuple[float, float]


# What rounding alone costs; `value` is held to the first of these with every engine.
_EXACT = _Accuracy((1e-12, 1e-11), (2e-5, 1e-4))
# Central differences balance h² against ε/h: ε^(2/3) = 4e-11 and 2e-5, times what f itself adds;
# second differences ε^(1/2) = 1e-8 and 3e-4.
_CENTRAL = _Accuracy((1e-6, 1e-3), (1e-2, 1e-1))
# Forward differences balance h against ε/h: ε^(1/2).
_FORWARD = _Accuracy((1e-5, 1e-2), (3e-2, 3e-1))
# A complex step has no cancellation; its second order is a difference of first-order steps.
_COMPLEX_STEP = _Accuracy((1e-12, 1e-6), (2e-5, 1e-2))
_GROWTH = {"exact": 1.0, "linalg": 100.0, "loop": 100.0}


def tolerance_of(backend: Backend, scenario: Scenario, order: int) -> float:
    """How far a derivative of this order may be off, relative to its largest element (order 0: the value)."""
    single = np.finfo(scenario.dtype).dtype.itemsize == 4
    accuracy = _accuracy_of(backend) if order else _EXACT
    # The growth of rounding errors: the looser classes have room for it.
    growth = _GROWTH[scenario.tolerance] if accuracy in (_EXACT, _COMPLEX_STEP) else 1.0
    return growth * (accuracy.single if single else accuracy.double)[max(order - 1, 0)]


def _accuracy_of(backend: Backend) -> _Accuracy:
    if not guest_of(backend).numeric:
        return _EXACT
    if backend.name == "complex_step":
        return _COMPLEX_STEP
    if isinstance(backend, AutoFiniteDiff) and backend.method == "forward":
        return _FORWARD
    return _CENTRAL
