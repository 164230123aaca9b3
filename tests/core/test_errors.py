"""Bad input: the error's type, and that its message says what came, what was expected and what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import diface
from diface.errors import (
    ArgumentMismatchError,
    BackendNotInstalledError,
    DifaceError,
    NotDifferentiableError,
    NotScalarError,
    PreparationMismatchError,
    UnknownBackendError,
    VerificationError,
)

x = np.array([1.0, 2.0, 3.0])
FD = "finite_diff"


def total(v: Any) -> Any:
    return (v**2).sum()


CASES: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("unknown backend", lambda: diface.gradient(total, "jux", x), UnknownBackendError,
     r"backend 'jux' is not known\. Installed here: .*'finite_diff'.*Pass one of these names"),
    ("backend class", lambda: diface.gradient(total, diface.AutoFiniteDiff, x), UnknownBackendError,
     r"is a class; an instance was expected\. Write AutoFiniteDiff\(\)"),
    ("backend None", lambda: diface.gradient(total, None, x), UnknownBackendError, r"backend None is not known"),
    ("vector value", lambda: diface.gradient(lambda v: v * 2, FD, x), NotScalarError,
     r"gradient\(finite_diff\): f returned an array of shape \(3,\); one real number was expected\. Use diface.jac"),
    ("two values", lambda: diface.gradient(lambda v: (v.sum(), v.sum()), FD, x), NotScalarError,
     r"f returned 2 arrays.*has_aux=True"),
    ("complex value", lambda: diface.gradient(lambda v: v.sum() * 1j, FD, x), NotScalarError,
     r"complex128 number.*real part"),
    ("integer value", lambda: diface.gradient(lambda v: np.int64(3), FD, x), NotScalarError,
     r"no floating-point number"),
    ("integer x", lambda: diface.gradient(total, FD, np.arange(3)), NotDifferentiableError,
     r"args\[0\] is numpy int64\[3\] on cpu; a real or complex floating-point number or array was expected\. Conv"),
    ("Python int x", lambda: diface.derivative(lambda v: v, FD, 3), NotDifferentiableError,
     r"args\[0\] is python int\[\] on cpu.*Convert it to floating point"),
    ("bool x", lambda: diface.gradient(total, FD, np.array([True])), NotDifferentiableError, r"bool\[1\]"),
    ("string x", lambda: diface.gradient(total, FD, "abc"), NotDifferentiableError,
     r"argument 0 holds no array \('abc'\)"),
    ("leaf deep in a tree", lambda: diface.gradient(lambda t: t["a"][0].sum(), FD, {"a": [x, np.arange(2)]}),
     NotDifferentiableError, r"args\[0\]\['a'\]\[1\] is numpy int64\[2\]"),
    ("no argument", lambda: diface.gradient(total, FD), ArgumentMismatchError,
     r"no argument to differentiate.*gradient\(f, backend, x\)"),
    ("no function", lambda: diface.gradient(3, FD, x), ArgumentMismatchError,
     r"f is int 3; a function was expected"),
    ("argnums too large", lambda: diface.gradient(total, FD, x, argnums=1), ArgumentMismatchError,
     r"argnums=1, but f was called with 1 argument\(s\)\. Use integers from -1 to 0"),
    ("argnums twice", lambda: diface.gradient(lambda a, b: a.sum(), FD, x, x, argnums=(0, -2)),
     ArgumentMismatchError, r"names an argument twice"),
    ("argnums of a kind", lambda: diface.gradient(total, FD, x, argnums="x"), ArgumentMismatchError,
     r"argnums is 'x'"),
    ("derivative of a vector", lambda: diface.derivative(total, FD, x), NotScalarError,
     r"x is numpy float64\[3\] on cpu; one real number was expected\. Use diface.gradient"),
    ("derivative by a complex number", lambda: diface.derivative(lambda v: v, FD, 1j), NotDifferentiableError,
     r"one real number was expected\. Use diface.pushforward"),
    ("tangent shape", lambda: diface.pushforward(total, FD, x, tangent=np.ones(2)), ArgumentMismatchError,
     r"tangent has shape \(2,\); its argument is numpy float64\[3\] on cpu, so \(3,\) was expected"),
    ("tangent dtype", lambda: diface.pushforward(total, FD, x, tangent=np.ones(3, np.float32)),
     ArgumentMismatchError, r"dtype float32; its argument is numpy float64\[3\].*Convert the tangent to float64"),
    ("tangent kind", lambda: diface.pushforward(total, FD, x, tangent="abc"), ArgumentMismatchError,
     r"tangent is str 'abc'"),
    ("tangent structure", lambda: diface.pushforward(lambda t: t["a"], FD, {"a": x}, tangent=[x]),
     ArgumentMismatchError, r"the tangent of argument 0 does not have its structure"),
    ("tangents for argnums", lambda: diface.pushforward(lambda a, b: a, FD, x, x, argnums=(0, 1), tangent=x),
     ArgumentMismatchError, r"a tuple of 2 was expected, one for each of argnums"),
    ("batched tangents of two lengths",
     lambda: diface.pushforward(lambda t: t[0], FD, (x, x), tangent=(np.ones((2, 3)), np.ones((4, 3))),
                                batched=True),
     ArgumentMismatchError, r"one leading axis of one length was expected"),
    ("cotangent shape", lambda: diface.pullback(lambda v: v * 2, FD, x, cotangent=np.ones(2)),
     ArgumentMismatchError, r"cotangent has shape \(2,\); f returned shape \(3,\), so \(3,\) was expected"),
    ("cotangent dtype", lambda: diface.pullback(lambda v: v * 2, FD, x, cotangent=np.ones(3, np.float32)),
     ArgumentMismatchError, r"cotangent has dtype float32; f returned float64"),
    ("cotangent structure", lambda: diface.pullback(lambda v: (v, v), FD, x, cotangent=np.ones(3)),
     ArgumentMismatchError, r"the cotangent has the structure .* f returned"),
    ("pull with a wrong shape",
     lambda: diface.value_and_pullback_function(lambda v: v * 2, FD, x)[1](np.ones(2)),
     ArgumentMismatchError, r"value_and_pullback_function\(finite_diff\): cotangent has shape \(2,\)"),
    ("push with a wrong shape",
     lambda: diface.value_and_pushforward_function(lambda v: v * 2, FD, x)[1](np.ones(2)),
     ArgumentMismatchError, r"tangent has shape \(2,\)"),
    ("aux without a pair", lambda: diface.gradient(total, FD, x, has_aux=True), DifaceError,
     r"has_aux=True, but f returned .*a pair \(y, aux\) was expected\. Return \(y, aux\), or drop has_aux"),
    ("a string as value", lambda: diface.gradient(lambda v: "abc", FD, x), NotDifferentiableError,
     r"f returned str 'abc' at y; an array or a number was expected"),
    ("jacobian of integers", lambda: diface.jacobian(lambda v: np.arange(3), FD, x), NotDifferentiableError,
     r"integers or booleans, which have no derivative"),
    ("mode", lambda: diface.AutoJAX(mode="backward"), ArgumentMismatchError,  # type: ignore[arg-type]
     r"AutoJAX: mode='backward' is not a mode\. Use mode=\"forward\""),
    ("method", lambda: diface.AutoFiniteDiff(method="left"), ArgumentMismatchError,  # type: ignore[arg-type]
     r"method='left' is not known"),
    ("step", lambda: diface.AutoFiniteDiff(step=-1.0), ArgumentMismatchError, r"step=-1.0 is not a positive"),
    ("prepare an unknown operator", lambda: diface.prepare("grad", total, FD, x), ArgumentMismatchError,
     r"operator 'grad' is not known\. Use one of: derivative, gradient"),
    ("on_mismatch", lambda: diface.prepare("gradient", total, FD, x, on_mismatch="x"), ArgumentMismatchError,  # type: ignore[arg-type]
     r"on_mismatch='x' is not known"),
    ("prep of another type", lambda: diface.gradient(total, FD, x, prep=3), ArgumentMismatchError,  # type: ignore[arg-type]
     r"prep is int; the result of diface.prepare was expected"),
    ("wrong shape into a prep", lambda: diface.prepare("gradient", total, FD, x)(np.ones(4)),
     PreparationMismatchError,
     r"args\[0\]: prepared numpy float64\[3\] on cpu, came numpy float64\[4\] on cpu.*\n.*on_mismatch=\"prepare\""),
    ("namespace of nothing", lambda: diface.array_namespace("a"), TypeError, r"no array among the arguments \(str\)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_message(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_not_installed_says_what_to_install() -> None:
    # A fresh interpreter in which JAX cannot be found, whether it is installed or not.
    code = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "jax":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
import numpy as np, diface
print(diface.is_available("jax"))
print([info.installed for info in diface.backends() if info.name == "jax"])
try:
    diface.gradient(lambda x: x.sum(), "jax", np.ones(2))
except diface.errors.BackendNotInstalledError as error:
    print(type(error).__mro__[1:3], error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "False"
    assert lines[1] == "[False]"
    assert "backend 'jax' needs jax, which is not installed. Run: pip install \"diface[jax]\"" in lines[2]
    assert issubclass(BackendNotInstalledError, ImportError)


def test_a_broken_install_is_not_called_missing() -> None:
    code = """
import sys
class Break:
    def find_spec(self, name, path=None, target=None):
        if name == "autograd.builtins":
            raise ModuleNotFoundError("No module named 'something_else'", name="something_else")
sys.meta_path.insert(0, Break())
import numpy as np, diface
if not diface.is_available("autograd"):
    print("skip")
else:
    try:
        diface.gradient(lambda x: x.sum(), "autograd", np.ones(2))
    except diface.errors.BackendNotInstalledError as error:
        print("wrong", error)
    except ModuleNotFoundError as error:
        print("right", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(("right", "skip"))


def test_nan_is_not_hidden() -> None:
    g = diface.gradient(total, FD, np.array([1.0, np.nan]))
    assert np.isnan(g).any()


def test_an_exception_of_the_function_keeps_its_type_and_line() -> None:
    class MyError(Exception):
        pass

    def broken(v: Any) -> Any:
        raise MyError("here")

    with pytest.raises(MyError, match="here") as caught:
        diface.gradient(broken, FD, x)
    assert any(entry.name == "broken" for entry in caught.traceback)


def test_verify_finds_a_wrong_derivative() -> None:
    # At a kink a one-sided difference is 1, the central one 0: no derivative at all.
    def kink(v: Any) -> Any:
        return np.abs(v - x).sum()

    with pytest.raises(VerificationError, match=r"gradient\(finite_diff\): along random direction \d"):
        diface.prepare("gradient", kink, diface.AutoFiniteDiff(method="forward"), x, verify=True)
    diface.prepare("gradient", total, FD, x, verify=True)
