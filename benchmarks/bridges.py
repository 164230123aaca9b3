"""An engine inside another: value and gradient of ``sum(sin(x) * x)`` by ``DifferentiateWith``, against native engines.

Run: ``python benchmarks/bridges.py`` (two minutes). Calls are interleaved in one process, in random
order, and the tables give medians. ``--packages`` adds the public packages that are installed
(``wrap-torch2jax``).
"""

from __future__ import annotations

import argparse
import gc
import resource
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from prepared import interleaved

import diface

Call = Callable[[], Any]


def f_jax(x: Any) -> Any:
    return jnp.sum(jnp.sin(x) * x)


def f_torch(x: Any) -> Any:
    return torch.sum(torch.sin(x) * x)


class Empty(torch.autograd.Function):
    """What an ``autograd.Function`` costs that does next to nothing."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x[0].clone()

    @staticmethod
    def backward(ctx: Any, ct: Any) -> Any:
        return ctx.saved_tensors[0]


def backward(f: Callable[..., Any], x: Any) -> Any:
    leaf = x.detach().requires_grad_()
    y = f(leaf)
    y.backward()
    return y.detach(), leaf.grad


def calls(n: int, packages: bool) -> dict[str, Call]:
    xt, xj = torch.linspace(0, 1, n), jnp.linspace(0, 1, n)
    in_torch, in_jax = diface.DifferentiateWith(f_jax, "jax"), diface.DifferentiateWith(f_torch, "torch")
    native, jitted = jax.jit(jax.value_and_grad(f_jax)), jax.jit(jax.value_and_grad(in_jax))
    eager, native_eager = jax.value_and_grad(in_jax), jax.value_and_grad(f_jax)
    table: dict[str, Call] = {
        "an empty autograd.Function": lambda: backward(Empty.apply, xt),
        "native PyTorch": lambda: backward(f_torch, xt),
        "JAX in PyTorch": lambda: backward(in_torch, xt),
        "native JAX, jit": lambda: jax.block_until_ready(native(xj)),
        "PyTorch in JAX, jit": lambda: jax.block_until_ready(jitted(xj)),
        "native JAX, eager": lambda: jax.block_until_ready(native_eager(xj)),
        "PyTorch in JAX, eager": lambda: jax.block_until_ready(eager(xj)),
    }
    if packages:
        from wrap_torch2jax import torch2jax_with_vjp

        other = torch2jax_with_vjp(f_torch, xt)
        other_jitted = jax.jit(jax.value_and_grad(other))
        table["PyTorch in JAX, jit, by wrap-torch2jax"] = lambda: jax.block_until_ready(other_jitted(xj))
    return table


RATIOS = [
    ("JAX in PyTorch", "an empty autograd.Function"),
    ("JAX in PyTorch", "native JAX, jit"),
    ("PyTorch in JAX, jit", "native PyTorch"),
    ("PyTorch in JAX, eager", "native JAX, eager"),
]


def speed(rounds: int, packages: bool) -> None:
    for n in (10, 1_000_000):
        few = n > 10
        times = interleaved(calls(n, packages), rounds // 3 if few else rounds, 2 if few else 50)
        print(f"\n{n} floats")
        for name, seconds in times.items():
            print(f"  {name:<42}{seconds * 1e6:>12.1f} µs")
        for name, base in RATIOS:
            print(f"  {name} / {base}: {times[name] / times[base]:.2f}")


def batched(rounds: int) -> None:
    inner = diface.DifferentiateWith(f_torch, "torch")
    X = jnp.linspace(0, 1, 10_000).reshape(1000, 10)
    mapped = jax.jit(jax.vmap(jax.grad(inner)))
    single = jax.jit(jax.grad(inner))

    def loop() -> Any:
        return [single(row) for row in X]

    times = interleaved({"vmap": lambda: jax.block_until_ready(mapped(X)), "loop": loop}, max(rounds // 10, 3), 1)
    print(f"\n1000 rows: one vectorised call is {times['loop'] / times['vmap']:.0f} times faster than the loop")


def memory() -> None:
    """Growth over many calls: of what Python holds, and of the process."""
    in_torch, in_jax = diface.DifferentiateWith(f_jax, "jax"), diface.DifferentiateWith(f_torch, "torch")
    xt, xj = torch.linspace(0, 1, 1000), jnp.linspace(0, 1, 1000)
    forward = jax.jit(lambda x: jax.vjp(in_jax, x)[0])
    linear = jax.jit(lambda x: jax.linearize(in_jax, x)[0])

    def lambdas() -> None:
        backward(diface.DifferentiateWith(lambda x: jnp.sum(x**2), "jax"), xt)

    jobs: list[tuple[str, Call, int]] = [
        ("value and gradient, JAX in PyTorch", lambda: backward(in_torch, xt), 10_000),
        ("value and gradient, PyTorch in eager JAX", lambda: jax.grad(in_jax)(xj), 10_000),
        ("a fresh lambda each time", lambdas, 1000),
        ("a compiled forward whose backward never runs", lambda: (forward(xj), linear(xj)), 10_000),
    ]
    print()
    for name, job, count in jobs:
        for _ in range(count // 10):
            job()
        gc.collect()
        before, objects = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(gc.get_objects())
        for _ in range(count):
            job()
        gc.collect()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"{count} × {name}: {grown:.1f} MiB more, {len(gc.get_objects()) - objects} objects more")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--packages", action="store_true", help="also the public packages")
    options = parser.parse_args()
    speed(options.rounds, options.packages)
    batched(options.rounds)
    memory()


if __name__ == "__main__":
    main()
