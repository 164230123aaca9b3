"""The suite is worth something only if it rejects engines that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from diface import _registry
from diface.testing import ConformanceError, Scenario, check_differentiation, default_scenarios
from tests.conformance.plugins import write_distribution

LIARS = {
    "wrong_sign": ("WrongSign", {"value", "prepared at other values"}),
    "changes_input": ("ChangesInput", {"inputs unchanged"}),
    "wrong_dtype": ("WrongDtype", {"value", "prepared at other values"}),
    "ignores_cotangent": ("IgnoresCotangent", {"value", "adjoint", "prepared at other values"}),
    "stale": ("Stale", {"prepared at other values", "prepared equals unprepared"}),
}
CHOSEN = ("08 sine and cosine", "05 06 power sums", "15 dict", "17 argnums=(0, 1)", "19 where positive")
OPERATORS = ("value_and_gradient", "value_and_jacobian", "value_and_pushforward", "value_and_pullback")


@pytest.fixture(autouse=True)
def liars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The liars, registered for one test."""
    backends = {name: f"tests.conformance.liars:{kind}" for name, (kind, _) in LIARS.items()}
    backends["honest"] = "tests.conformance.liars:Honest"
    write_distribution(tmp_path, "liars", backends, {"tests": "tests.conformance.liars:DUAL"})
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    for cached in (
        _registry._entries,
        _registry._named,
        _registry._spec_class,
        _registry.guest_of,
        _registry.library_for_root,
    ):
        cached.cache_clear()


def _scenarios() -> list[Scenario]:
    return [s for s in default_scenarios() if s.name.rpartition("-")[0] in CHOSEN]


def test_the_control_passes() -> None:
    result = check_differentiation(["honest"], _scenarios(), operators=OPERATORS)
    assert result.total > 20


@pytest.mark.parametrize("name", LIARS)
def test_a_liar_is_rejected_for_its_lie(name: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_differentiation([name], _scenarios(), operators=OPERATORS)
    failures = caught.value.failures
    assert {failure.backend for failure in failures} == {name}
    assert "raised" not in {failure.check for failure in failures}, str(caught.value)
    assert LIARS[name][1] <= {failure.check for failure in failures}, str(caught.value)
    if name in ("wrong_sign", "wrong_dtype", "stale"):  # these are wrong everywhere
        assert {f.scenario for f in failures} == {s.name for s in _scenarios()}


def test_all_failures_are_in_one_readable_report() -> None:
    x = np.array([1.0, 2.0])
    square = Scenario("square", lambda x: np.sum(x * x), (x,), {"value": np.array(5.0), "gradient": 3 * x})
    both = r"(?s)square, gradient, .*square, value_and_gradient, "
    with pytest.raises(ConformanceError, match=both) as caught:
        check_differentiation(["honest"], [square])
    assert "expected 6.0, came " in str(caught.value)


def test_an_exclusion_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="matches no case"):
        check_differentiation(["honest"], _scenarios(), excluded=["honest-99*"])


def test_gaps_and_exclusions_are_counted_with_their_reason() -> None:
    result = check_differentiation(
        ["honest"], _scenarios(), operators=OPERATORS, gaps={"honest": {"branch": "no branches here"}},
        excluded=["*-08_*-value_and_pullback-*"],
    )  # fmt: skip
    assert {gap.reason for gap in result.gaps} == {"branch: no branches here"}
    assert len(result.excluded) == 2
    assert "no branches here" in str(result)
