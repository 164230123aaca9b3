"""Prepared ``value_and_gradient`` of ``sum(sin(x) * x)`` against the engine called by hand.

Run: ``python benchmarks/prepared.py`` (two minutes). The calls are interleaved in one process, in
random order, and the table gives medians: the machine's noise hits both alike.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import diface


def interleaved(calls: dict[str, Callable[[], Any]], rounds: int, repeats: int) -> dict[str, float]:
    """The median time of each call in seconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for name in names:
        for _ in range(3):
            calls[name]()
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            call = calls[name]
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            times[name].append((time.perf_counter() - start) / repeats)
    return {name: statistics.median(samples) for name, samples in times.items()}


def torch_calls(n: int) -> dict[str, Callable[[], Any]]:
    import torch

    def f(x: Any) -> Any:
        return torch.sum(torch.sin(x) * x)

    x = torch.linspace(0.0, 1.0, n)

    def by_hand() -> Any:
        leaf = x.detach().requires_grad_()
        y = f(leaf)
        (g,) = torch.autograd.grad(y, leaf)
        return y.detach(), g

    prep = diface.prepare(diface.value_and_gradient, f, "torch", x)
    return {"by hand": by_hand, "diface": lambda: prep(x)}


def jax_calls(n: int) -> dict[str, Callable[[], Any]]:
    import jax
    import jax.numpy as jnp

    def f(x: Any) -> Any:
        return jnp.sum(jnp.sin(x) * x)

    x = jnp.linspace(0.0, 1.0, n)
    native = jax.jit(jax.value_and_grad(f))
    prep = diface.prepare(diface.value_and_gradient, f, "jax", x)
    return {
        "by hand": lambda: jax.block_until_ready(native(x)),
        "diface": lambda: jax.block_until_ready(prep(x)),
    }


def autograd_calls(n: int) -> dict[str, Callable[[], Any]]:
    import autograd
    import autograd.numpy as anp
    import numpy as np

    def f(x: Any) -> Any:
        return anp.sum(anp.sin(x) * x)

    x = np.linspace(0.0, 1.0, n)
    native = autograd.value_and_grad(f)
    prep = diface.prepare(diface.value_and_gradient, f, "autograd", x)
    return {"by hand": lambda: native(x), "diface": lambda: prep(x)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    print(f"{'engine':<10}{'floats':>10}{'by hand µs':>14}{'diface µs':>12}{'ratio':>8}")
    for name, make in (("torch", torch_calls), ("jax", jax_calls), ("autograd", autograd_calls)):
        if not diface.is_available(name):
            print(f"{name:<10} not installed")
            continue
        for n in (10, 1_000_000):
            rounds, repeats = (options.rounds, 100) if n == 10 else (max(options.rounds // 4, 5), 1)
            times = interleaved(make(n), rounds, repeats)
            hand, ours = times["by hand"] * 1e6, times["diface"] * 1e6
            print(f"{name:<10}{n:>10}{hand:>14.1f}{ours:>12.1f}{ours / hand:>8.3f}")


if __name__ == "__main__":
    main()
