"""``python -m diface tour``: the main job on real data, by every engine that is installed."""

from __future__ import annotations

import functools
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize
from sklearn.datasets import load_diabetes

import diface
from diface._specs import BUILT_IN

__all__ = ["run"]

_ENGINES = ("jax", "torch", "autograd", "complex_step", "finite_diff")
# How far an engine's gradient may be from the most precise one: rounding, or what differences allow.
_TOLERANCE = {"finite_diff": 1e-5}
_HIDDEN = 3
_RIDGE = 1e-2


def loss(w: Any, X: Any, t: Any) -> Any:
    """The mean squared error of a small network with a ridge penalty, on any library's arrays."""
    xp = diface.array_namespace(w)
    n = X.shape[1]
    W1 = xp.reshape(w[: n * _HIDDEN], (n, _HIDDEN))
    b1, w2, b2 = w[n * _HIDDEN : (n + 1) * _HIDDEN], w[(n + 1) * _HIDDEN : -1], w[-1]
    residual = xp.matmul(xp.tanh(xp.matmul(X, W1) + b1), w2) + b2 - t
    return xp.sum(residual**2) / X.shape[0] + _RIDGE * xp.sum(w**2)


class _Fit(NamedTuple):
    engine: str
    loss: float
    iterations: int
    seconds: float
    gradient: np.ndarray[Any, Any]
    prepared: Callable[..., Any]


def run() -> int:
    """Takes the tour; returns the exit code: 1 if engines disagree."""
    console = Console(width=None, highlight=False)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diface.errors.PerformanceWarning)
        code = _tour(console)
    console.print(f"\nThe tour took {time.perf_counter() - start:.1f} s.")
    return code


def _tour(console: Console) -> int:
    here, missing = _installed()
    X, t = _data()
    w0 = np.random.default_rng(0).standard_normal(X.shape[1] * _HIDDEN + 2 * _HIDDEN + 1) * 0.3
    console.rule("1. One model, every engine")
    console.print(
        f"A network with {w0.size} weights is fitted to scikit-learn's diabetes data ({X.shape[0]} patients, "
        f"{X.shape[1]} features) by SciPy's L-BFGS-B. The loss is written once, on "
        "diface.array_namespace(w); SciPy hands over NumPy arrays and gets NumPy arrays back, whichever "
        "engine differentiates.\n"
    )
    fits = [_fit(engine, w0, X, t) for engine in here]
    best = fits[0]
    disagree = _show_fits(console, fits, best)
    for name in missing:
        console.print(f'Not installed: {name}. To add it: pip install "diface[{BUILT_IN[name].extra}]"', markup=False)
    _preparation(console, fits, w0, X, t)
    _second_order(console, best, X, t)
    disagree += _mixing(console, w0, X, t, here)
    if disagree:
        console.print(f"\nDISAGREEMENT: {', '.join(disagree)}")
        return 1
    console.print("\nAll engines agree.")
    return 0


def _installed() -> tuple[list[str], list[str]]:
    here = [name for name in _ENGINES if diface.is_available(name)]
    return here, [name for name in _ENGINES if name not in here]


def _data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    data: Any = load_diabetes()
    X = (data.data - data.data.mean(0)) / data.data.std(0)
    return np.ascontiguousarray(X), (data.target - data.target.mean()) / data.target.std()


def _fit(engine: str, w0: Any, X: Any, t: Any) -> _Fit:
    prepared = diface.prepare(diface.value_and_gradient, loss, engine, w0, X, t)
    start = time.perf_counter()
    result = minimize(prepared, w0, args=(X, t), jac=True, method="L-BFGS-B", options={"maxiter": 40})
    seconds = time.perf_counter() - start
    return _Fit(engine, float(result.fun), int(result.nit), seconds, prepared(w0, X, t)[1], prepared)


def _show_fits(console: Console, fits: list[_Fit], best: _Fit) -> list[str]:
    table = Table("engine", "final loss", "iterations", "time", "gradient at the start agrees to")
    disagree = []
    for fit in fits:
        gap = float(np.max(np.abs(fit.gradient - best.gradient)) / np.max(np.abs(best.gradient)))
        digits = "(the reference)" if fit is best else f"{-np.log10(max(gap, 1e-16)):.1f} digits"
        table.add_row(fit.engine, f"{fit.loss:.6f}", str(fit.iterations), f"{fit.seconds:.2f} s", digits)
        if not gap <= _TOLERANCE.get(fit.engine, 1e-10):
            disagree.append(fit.engine)
    console.print(table)
    console.print("Finite differences know the loss by its values alone; the others are exact to rounding.\n")
    return disagree


def _preparation(console: Console, fits: list[_Fit], w0: Any, X: Any, t: Any) -> None:
    console.rule("2. What preparation saves")
    X, t = X[:4].copy(), t[:4].copy()  # so few patients that the overhead is what takes the time
    console.print(
        "diface.prepare traces, compiles and checks once. One value and gradient for 4 patients: the first call "
        "of all, and the medians of later calls, unprepared (which look up what the first one compiled) and "
        "prepared:\n"
    )
    table = Table("engine", "first call", "unprepared", "prepared")
    for fit in fits:
        engine = fit.engine
        first = _seconds(lambda engine=engine: diface.value_and_gradient(loss, engine, w0, X, t))  # type: ignore[misc]
        prepared = diface.prepare(diface.value_and_gradient, loss, engine, w0, X, t)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(40):
            times[0].append(_seconds(lambda engine=engine: diface.value_and_gradient(loss, engine, w0, X, t)))  # type: ignore[misc]
            times[1].append(_seconds(lambda prepared=prepared: prepared(w0, X, t)))  # type: ignore[misc]
        table.add_row(engine, *[f"{seconds * 1e6:.0f} µs" for seconds in (first, *map(statistics.median, times))])
    console.print(table)


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _second_order(console: Console, best: _Fit, X: Any, t: Any) -> None:
    console.rule("3. Second order")
    w = np.zeros(X.shape[1])

    def linear(w: Any, X: Any, t: Any) -> Any:
        xp = diface.array_namespace(w)
        return xp.sum((xp.matmul(X, w) - t) ** 2) / 2

    H = diface.hessian(linear, best.engine, w, X, t)
    g = diface.gradient(linear, best.engine, w, X, t)
    exact = np.linalg.lstsq(X, t, rcond=None)[0]
    newton = -np.linalg.solve(H, g)
    console.print(
        f"One Newton step with diface.hessian (by {best.engine}) solves linear regression: it differs from "
        f"NumPy's least squares by {np.max(np.abs(newton - exact)):.1e}."
    )


def _mixing(console: Console, w0: Any, X: Any, t: Any, here: list[str]) -> list[str]:
    pairs = [("torch", "jax"), ("jax", "torch"), ("autograd", "jax"), ("jax", "finite_diff")]
    pairs = [(host, guest) for host, guest in pairs if host in here and guest in here]
    if not pairs:
        return []
    console.rule("4. An engine inside another")
    console.print(
        "diface.DifferentiateWith(f, guest) makes whichever engine meets f (the host) use the guest for f and its "
        "derivative. Here the loss is the guest's, and its logarithm the host's:\n"
    )
    table = Table("host", "guest", "gradient agrees with the host alone to", "runs of the loss")
    disagree = []
    for host, guest in pairs:
        runs = 0

        def counted(w: Any, X: Any, t: Any) -> Any:
            nonlocal runs
            runs += 1
            return loss(w, X, t)

        inner = diface.DifferentiateWith(counted, guest)

        def logarithm(w: Any, X: Any, t: Any, f: Any) -> Any:
            return diface.array_namespace(w).log(f(w, X, t))

        mixed = diface.prepare("gradient", functools.partial(logarithm, f=inner), host, w0, X, t)
        runs = 0
        g = mixed(w0, X, t)
        count = "compiled" if guest == "jax" else str(runs)
        alone = diface.gradient(functools.partial(logarithm, f=loss), host, w0, X, t)
        gap = float(np.max(np.abs(g - alone)) / np.max(np.abs(alone)))
        table.add_row(host, guest, f"{-np.log10(max(gap, 1e-16)):.1f} digits", count)
        if not gap <= _TOLERANCE.get(guest, 1e-10):
            disagree.append(f"{guest} in {host}")
    console.print(table)
    console.print("A guest with reverse mode runs the loss once for value and gradient.")
    return disagree

