"""Writes ``docs/pairs.md``: what each host can do with each guest, found by doing it.

Run: ``python docs/make_pairs.py`` (a minute). A cell is a tick only if the numbers are right.
"""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import autograd
import jax
import jax.numpy as jnp
import numpy as np
import torch

import diface

GUESTS = ["jax", "torch", "autograd", "finite_diff", "complex_step"]
X = np.linspace(0.2, 1.0, 3)
ROWS = np.stack([X, 2 * X])


def f(x: Any) -> Any:
    return diface.array_namespace(x).sum(x**4)


def value(x: Any) -> Any:
    return np.sum(x**4, -1)


def hessian(x: Any) -> Any:
    return np.diag(12 * x**2)


def third(x: Any) -> Any:
    out = np.zeros((3, 3, 3))
    out[range(3), range(3), range(3)] = 24 * x
    return out


Transform = tuple[Callable[[Any], Any], Any]


def jax_transforms() -> dict[str, Transform]:
    x, rows = jnp.asarray(X), jnp.asarray(ROWS)
    plain: dict[str, Transform] = {
        "value": (lambda f: f(x), value(X)),
        "grad": (lambda f: jax.grad(f)(x), 4 * X**3),
        "jvp": (lambda f: jax.jvp(f, (x,), (x,))[1], np.sum(4 * X**4)),
        "jacfwd": (lambda f: jax.jacfwd(f)(x), 4 * X**3),
        "jacrev": (lambda f: jax.jacrev(f)(x), 4 * X**3),
        "hessian": (lambda f: jax.hessian(f)(x), hessian(X)),
        "jacrev of jacrev": (lambda f: jax.jacrev(jax.jacrev(f))(x), hessian(X)),
        "third order": (lambda f: jax.jacfwd(jax.hessian(f))(x), third(X)),
        "vmap": (lambda f: jax.vmap(f)(rows), value(ROWS)),
        "vmap of grad": (lambda f: jax.vmap(jax.grad(f))(rows), 4 * ROWS**3),
        "grad of scan": (
            lambda f: jax.grad(lambda r: jax.lax.scan(lambda c, x: (c + f(x), None), 0.0, r)[0])(rows), 4 * ROWS**3
        ),
        "grad of cond": (lambda f: jax.grad(lambda x: jax.lax.cond(x[0] > 0, f, lambda x: x[0], x))(x), 4 * X**3),
        "grad of checkpoint": (lambda f: jax.grad(jax.checkpoint(lambda x: f(x)))(x), 4 * X**3),
    }
    for name, (run, out) in list(plain.items()):
        plain[f"jit of {name}"] = (lambda f, run=run: jax.jit(lambda: run(f))(), out)
    return plain


def torch_transforms() -> dict[str, Transform]:
    x, rows = torch.tensor(X), torch.tensor(ROWS)
    func = torch.func

    def backward(f: Any) -> Any:
        leaf = x.clone().requires_grad_()
        f(leaf).backward()
        return leaf.grad

    def double_backward(f: Any) -> Any:
        leaf = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(leaf), leaf, create_graph=True)
        return torch.autograd.grad(g.sum(), leaf)[0]

    return {
        "value": (lambda f: f(x), value(X)),
        "backward": (backward, 4 * X**3),
        "create_graph=True": (double_backward, 12 * X**2),
        "func.grad": (lambda f: func.grad(f)(x), 4 * X**3),
        "func.jvp": (lambda f: func.jvp(f, (x,), (x,))[1], np.sum(4 * X**4)),
        "func.jacfwd": (lambda f: func.jacfwd(f)(x), 4 * X**3),
        "func.jacrev": (lambda f: func.jacrev(f)(x), 4 * X**3),
        "func.hessian": (lambda f: func.hessian(f)(x), hessian(X)),
        "jacrev of jacrev": (lambda f: func.jacrev(func.jacrev(f))(x), hessian(X)),
        "third order": (lambda f: func.jacfwd(func.hessian(f))(x), third(X)),
        "func.vmap": (lambda f: func.vmap(f)(rows), value(ROWS)),
        "vmap of grad": (lambda f: func.vmap(func.grad(f))(rows), 4 * ROWS**3),
    }


def autograd_transforms() -> dict[str, Transform]:
    return {
        "value": (lambda f: f(X), value(X)),
        "grad": (lambda f: autograd.grad(f)(X), 4 * X**3),
        "make_jvp": (lambda f: autograd.make_jvp(f)(X)(X)[1], np.sum(4 * X**4)),
        "hessian": (lambda f: autograd.hessian(f)(X), hessian(X)),
    }


def cell(run: Callable[[Any], Any], guest: str, expected: Any) -> str:
    try:
        out = run(diface.DifferentiateWith(f, guest))
    except Exception as error:  # which one is what the table tells
        named = error
        while named is not None and not isinstance(named, diface.errors.DifaceError):
            named = named.__cause__  # type: ignore[assignment]
        return f"`{type(named or error).__name__}`"
    return "✓" if np.allclose(np.asarray(out), expected, rtol=1e-3, atol=1e-3) else "WRONG"


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    lines = [
        "# What works, pair by pair", "",
        "Made by `python docs/make_pairs.py`, which runs every cell; ✓ is a right number. A name is the error that",
        "refuses: numeric guests give two orders.", "",
    ]  # fmt: skip
    hosts = {"JAX": jax_transforms(), "PyTorch": torch_transforms(), "autograd": autograd_transforms()}
    for host, transforms in hosts.items():
        lines += [f"## Host: {host}", "", f"| | {' | '.join(GUESTS)} |", f"|---|{'---|' * len(GUESTS)}"]
        for name, (run, expected) in transforms.items():
            lines.append(f"| {name} | " + " | ".join(cell(run, guest, expected) for guest in GUESTS) + " |")
        lines.append("")
    pathlib.Path(__file__).with_name("pairs.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
