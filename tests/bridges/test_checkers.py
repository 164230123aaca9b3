"""The engines' own checkers on wrapped functions: one and two outputs, an unused argument, identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import diface
from diface import DifferentiateWith
from tests.engines import require

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def functions(xp: Any) -> dict[str, Callable[..., Any]]:
    return {
        "scalar": lambda x, y: xp.sum(xp.sin(x) * y),
        "two outputs": lambda x, y: (x * y, xp.sum(xp.cos(x))),
        "unused argument": lambda x, y: xp.sin(x) * x,
        "identity": lambda x, y: x,
    }


NAMES = list(functions(np))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("guest", ["jax", "autograd", "torch in jax"])
def test_gradcheck(guest: str, name: str) -> None:
    torch = require("torch")
    if guest == "torch in jax":
        # A PyTorch function in a JAX function in PyTorch.
        require("jax")
        f: Any = DifferentiateWith(DifferentiateWith(functions(torch)[name], "torch"), "jax")
    else:
        module = require(guest)
        f = DifferentiateWith(functions(require(f"{module.__name__}.numpy"))[name], guest)
    args = [torch.linspace(0.1, 1, 3, dtype=torch.float64).requires_grad_() for _ in range(2)]
    assert torch.autograd.gradcheck(f, args, check_forward_ad=True)
    if name != "identity":
        assert torch.autograd.gradgradcheck(f, args, check_fwd_over_rev=True)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("guest", ["torch", "autograd"])
def test_check_grads(guest: str, name: str, jitted: bool) -> None:
    jax = require("jax")
    module = require(guest)
    xp = module if guest == "torch" else require("autograd.numpy")
    test_util = require("jax.test_util")
    f = DifferentiateWith(functions(xp)[name], guest)
    with jax.enable_x64(True):
        args = (jax.numpy.linspace(0.1, 1, 3), jax.numpy.linspace(0.5, 2, 3))
        test_util.check_grads(jax.jit(f) if jitted else f, args, 2, modes=("fwd", "rev"))


@pytest.mark.parametrize("guest", ["torch", "jax"])
def test_check_grads_of_autograd(guest: str) -> None:
    require("autograd")
    test_util = require("autograd.test_util")
    module = require(guest)
    xp = module if guest == "torch" else module.numpy
    f = DifferentiateWith(lambda x: xp.sum(xp.sin(x) * x), guest)
    test_util.check_grads(f, modes=["fwd", "rev"], order=2)(np.linspace(0.1, 1, 3))


def test_third_order() -> None:
    jax, torch = require("jax"), require("torch")
    f = DifferentiateWith(lambda x: torch.sum(x**4), "torch")
    x = jax.numpy.array([0.5, 1.0])
    for third in (jax.jacfwd(jax.hessian(f)), jax.jacrev(jax.jacrev(jax.jacrev(f)))):
        for run in (third, jax.jit(third)):
            np.testing.assert_allclose(run(x)[[0, 1], [0, 1], [0, 1]], 24 * x, rtol=1e-5)
    g = DifferentiateWith(lambda x: jax.numpy.sum(x**4), "jax")
    t = torch.tensor([0.5, 1.0])
    third = torch.func.jacfwd(torch.func.jacfwd(torch.func.jacfwd(g)))
    np.testing.assert_allclose(third(t)[[0, 1], [0, 1], [0, 1]], 24 * t, rtol=1e-5)


def test_what_a_guest_cannot_do_is_refused() -> None:
    jax, torch = require("jax"), require("torch")
    f = DifferentiateWith(lambda x: (x**4).sum(), "finite_diff")
    message = r"DifferentiateWith\(<lambda>, finite_diff\): a derivative of order 3 was asked for.*Use a guest"
    with pytest.raises(diface.errors.UnsupportedError, match=message):
        jax.jacfwd(jax.hessian(f))(jax.numpy.ones(2))
    with pytest.raises(diface.errors.UnsupportedError, match=message):
        torch.func.jacrev(torch.func.hessian(f))(torch.ones(2))


def test_gradients_in_pytorchs_older_batches_are_refused() -> None:
    require("jax")
    torch = require("torch")
    f = DifferentiateWith(lambda x: x * 2, "jax")
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(diface.errors.UnsupportedError, match=r"is_grads_batched.*Use torch.func.jacrev"):
        torch.autograd.grad(f(x), x, torch.eye(2), is_grads_batched=True)
