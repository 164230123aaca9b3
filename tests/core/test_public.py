"""What is public, and that importing it loads no engine."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

import diface
from diface import errors

PUBLIC = {
    "Backend", "AutoAutograd", "AutoComplexStep", "AutoFiniteDiff", "AutoJAX", "AutoTorch", "BackendInfo",
    "backends", "is_available", "derivative", "gradient", "gradient_and_hvp", "hessian", "hvp", "jacobian",
    "pullback", "pushforward", "second_derivative", "value_and_derivative", "value_and_gradient",
    "value_and_jacobian", "value_and_pullback", "value_and_pullback_function", "value_and_pushforward",
    "value_and_pushforward_function", "value_derivative_and_second_derivative", "value_gradient_and_hessian",
    "DifferentiateWith", "differentiate_with", "Preparation", "prepare", "array_namespace", "errors",
}  # fmt: skip


def test_public_names_are_pinned() -> None:
    assert set(diface.__all__) == PUBLIC
    for name in diface.__all__:
        assert getattr(diface, name).__doc__, f"{name} has no docstring"


def test_import_loads_no_engine() -> None:
    code = (
        "import sys, diface; "
        "print([m for m in ('jax', 'torch', 'autograd', 'warp', 'enzyme_ad', 'rich', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_finite_differences_load_no_other_engine() -> None:
    code = (
        "import sys, numpy as np, diface; diface.gradient(lambda x: (x**2).sum(), 'finite_diff', np.ones(2)); "
        "print([m for m in ('jax', 'torch', 'autograd') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "backend",
    [
        diface.AutoJAX(), diface.AutoTorch(), diface.AutoAutograd(), diface.AutoFiniteDiff(),
        diface.AutoComplexStep(),
    ],
)
def test_backends_are_frozen_values(backend: diface.Backend) -> None:
    same = type(backend)()
    assert backend == same
    assert hash(backend) == hash(same)
    assert repr(backend).startswith(type(backend).__name__)
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        backend.mode = "forward"  # type: ignore[attr-defined]


def test_every_error_is_a_diface_error_and_a_builtin() -> None:
    expected = {
        "UnknownBackendError": ValueError, "BackendNotInstalledError": ImportError,
        "UnsupportedError": NotImplementedError, "PreparationMismatchError": ValueError,
        "NotScalarError": ValueError, "NotDifferentiableError": TypeError, "MutationError": RuntimeError,
        "VerificationError": ArithmeticError, "ArgumentMismatchError": ValueError,
    }  # fmt: skip
    for name, builtin in expected.items():
        error = getattr(errors, name)
        assert issubclass(error, errors.DifaceError)
        assert issubclass(error, builtin)
    for name in ("PerformanceWarning", "UnusedRuleWarning", "MissedCallWarning", "UntracedOutputWarning"):
        assert issubclass(getattr(errors, name), UserWarning)


def test_backends_lists_the_built_in_engines() -> None:
    listed = {info.name: info for info in diface.backends()}
    assert {"jax", "torch", "autograd", "finite_diff", "complex_step"} <= listed.keys()
    numeric = listed["finite_diff"]
    assert numeric.installed
    assert numeric.devices == ("cpu",)
    assert numeric.modes == ("forward",)
    for info in listed.values():
        assert info.installed == diface.is_available(info.name)
        assert (info.version is not None) == info.installed
