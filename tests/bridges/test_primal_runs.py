"""A value and gradient runs the guest's function once: every pair, eager, compiled and prepared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import diface
from diface import DifferentiateWith
from tests.engines import require

HOSTS = ("jax", "torch", "autograd")
GUESTS = {"jax": diface.AutoJAX(jit=False), "torch": diface.AutoTorch(), "autograd": diface.AutoAutograd()}
X = np.linspace(0.1, 1.0, 5)


def scalar(x: Any) -> Any:
    xp = diface.array_namespace(x)
    return xp.sum(xp.sin(x) * x)


def vector(x: Any) -> Any:
    return diface.array_namespace(x).sin(x) * x


def native_calls(host: str, f: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """Ways in which a host takes a value and gradient of ``sum(f(x) ** 2)``."""
    if host == "jax":
        jax = require("jax")
        x = jax.numpy.asarray(X, dtype="float32")
        run = jax.value_and_grad(lambda x: jax.numpy.sum(f(x) ** 2))
        jitted = jax.jit(run)
        return {
            "eager": lambda: run(x), "jit": lambda: jax.block_until_ready(jitted(x)),
            "jacrev": lambda: jax.jacrev(f)(x),
        }  # fmt: skip
    if host == "torch":
        torch = require("torch")
        x = torch.tensor(X)

        def backward() -> Any:
            leaf = x.clone().requires_grad_()
            (f(leaf) ** 2).sum().backward()
            return leaf.grad

        return {
            "backward": backward, "torch.func.grad": lambda: torch.func.grad(lambda x: (f(x) ** 2).sum())(x),
            "jacrev": lambda: torch.func.jacrev(f)(x),
        }  # fmt: skip
    autograd = require("autograd")
    return {"grad": lambda: autograd.grad(lambda x: (f(x) ** 2).sum())(X)}


@pytest.mark.parametrize("f", [scalar, vector])
@pytest.mark.parametrize("guest", list(GUESTS))
@pytest.mark.parametrize("host", HOSTS)
def test_one_primal_run(host: str, guest: str, f: Callable[..., Any]) -> None:
    require(host)
    require(guest)
    runs = 0

    def counted(x: Any) -> Any:
        nonlocal runs
        runs += 1
        return f(x)

    wrapped = DifferentiateWith(counted, GUESTS[guest])
    calls = native_calls(host, wrapped)
    calls["prepared"] = prepared(host, wrapped)
    if guest == "autograd":
        calls.pop("jacrev", None)  # it has no vmap: a run for each row
    for name, call in calls.items():
        call()
        runs = 0
        call()
        if host == guest == "jax":
            assert runs <= 1, name  # compiled by the host itself
        else:
            assert runs == 1, name


def prepared(host: str, wrapped: Any) -> Callable[[], Any]:
    prep = diface.prepare("value_and_gradient", lambda x: diface.array_namespace(x).sum(wrapped(x) ** 2), host, X)
    return lambda: prep(X)
