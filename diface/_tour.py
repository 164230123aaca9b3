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
from rich.progress import Progress
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
_ITERATIONS = 40


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
    """Takes the tour; returns the exit code: 1 if engines disagree, or one that is installed does not work."""
    console = Console(highlight=False)
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
    fits, broken = _fits(console, here, w0, X, t)
    here = [fit.engine for fit in fits]
    best = fits[0]
    disagree = _show_fits(console, fits, best)
    for line in broken:
        console.print(line, markup=False)
    for name in missing:
        console.print(f'Not installed: {name}. To add it: pip install "diface[{BUILT_IN[name].extra}]"', markup=False)
    _preparation(console, fits, w0, X, t)
    disagree += _second_order(console, best, X, t)
    disagree += _mixing(console, w0, X, t, here)
    console.print()
    for line in disagree:
        console.print(f"DISAGREEMENT: {line}.", markup=False)
    if not disagree:
        console.print("All engines that work here agree." if broken else "All engines agree.")
    return 1 if disagree or broken else 0


def _installed() -> tuple[list[str], list[str]]:
    here = [name for name in _ENGINES if diface.is_available(name)]
    return here, [name for name in _ENGINES if name not in here]


def _data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    data: Any = load_diabetes()
    X = (data.data - data.data.mean(0)) / data.data.std(0)
    return np.ascontiguousarray(X), (data.target - data.target.mean()) / data.target.std()


def _fits(console: Console, engines: list[str], w0: Any, X: Any, t: Any) -> tuple[list[_Fit], list[str]]:
    """The fit of each engine, and a line for each that is installed and does not work."""
    fits, broken = [], []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("fitting", total=len(engines))
        for engine in engines:
            progress.update(bar, description=f"fitting by {engine}")
            try:
                fits.append(_fit(engine, w0, X, t))
            except Exception as error:  # a broken install must not take the other engines' tour away
                broken.append(
                    f"Installed, but does not work here: {engine} ({type(error).__name__}: {error}). "
                    "What to do: python -m diface doctor"
                )
            progress.advance(bar)
    return fits, broken


def _fit(engine: str, w0: Any, X: Any, t: Any) -> _Fit:
    prepared = diface.prepare(diface.value_and_gradient, loss, engine, w0, X, t)
    start = time.perf_counter()
    result = minimize(prepared, w0, args=(X, t), jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS})
    seconds = time.perf_counter() - start
    return _Fit(engine, float(result.fun), int(result.nit), seconds, prepared(w0, X, t)[1], prepared)


def _show_fits(console: Console, fits: list[_Fit], best: _Fit) -> list[str]:
    table = Table("engine", "final loss", "iterations", "time", "gradient at the start agrees to")
    disagree = []
    for fit in fits:
        gap = _gap(fit.gradient, best.gradient)
        digits = "(the reference)" if fit is best else _digits(gap)
        table.add_row(fit.engine, f"{fit.loss:.6f}", str(fit.iterations), f"{fit.seconds:.2f} s", digits)
        disagree += _judge(f"the gradients by {fit.engine} and {best.engine}", gap, fit.engine)
    console.print(table)
    console.print(
        f"Final loss: after at most {_ITERATIONS} iterations, where SciPy is told to stop. Time: of the fit, after "
        "preparation; where one engine's is far above the others', python -m diface doctor may know why. Digits: of "
        "the largest element, 16 at most. Finite differences know the loss by its values alone; the others are "
        "exact to rounding.\n"
    )
    return disagree


def _gap(came: Any, expected: Any) -> float:
    return float(np.max(np.abs(came - expected)) / np.max(np.abs(expected)))


def _digits(gap: float) -> str:
    return f"{-np.log10(max(gap, 1e-16)):.1f} digits"


def _judge(what: str, gap: float, engine: str) -> list[str]:
    """A line if ``what`` differ by more than ``engine`` may."""
    allowed = _TOLERANCE.get(engine, 1e-10)
    # Written so that a NaN is a disagreement.
    return [] if gap <= allowed else [f"{what} agree to {_digits(gap)}; {-np.log10(allowed):.0f} were expected"]


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
    console.print()


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _second_order(console: Console, best: _Fit, X: Any, t: Any) -> list[str]:
    console.rule("3. Second order")
    w = np.zeros(X.shape[1])

    def linear(w: Any, X: Any, t: Any) -> Any:
        xp = diface.array_namespace(w)
        return xp.sum((xp.matmul(X, w) - t) ** 2) / 2

    H = diface.hessian(linear, best.engine, w, X, t)
    g = diface.gradient(linear, best.engine, w, X, t)
    exact = np.linalg.lstsq(X, t, rcond=None)[0]
    newton = -np.linalg.solve(H, g)
    residual = np.matmul(X, newton) - t
    bars = np.sqrt(np.diag(np.linalg.inv(H)) * np.sum(residual**2) / (X.shape[0] - X.shape[1] - 1))
    data: Any = load_diabetes()
    bmi = data.feature_names.index("bmi")
    gap = _gap(newton, exact)
    console.print(
        f"Linear regression's loss is quadratic, so one Newton step with diface.hessian (by {best.engine}) minimises "
        f"it: the step agrees with NumPy's least squares to {_digits(gap)}. The inverse of the Hessian gives the "
        f"standard errors: the weight of the body-mass index is {newton[bmi]:.3f} ± {bars[bmi]:.3f}.\n"
    )
    # The Hessian of a numeric engine is a second difference, with half of the digits at best.
    return [] if gap <= 1e-6 else [f"Newton's step by {best.engine} and least squares agree to {_digits(gap)}"]


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
        gap = _gap(g, alone)
        table.add_row(host, guest, _digits(gap), count)
        disagree += _judge(f"the gradients by {guest} inside {host}, and by {host} alone,", gap, guest)
    console.print(table)
    console.print("A guest with reverse mode runs the loss once for value and gradient.")
    return disagree

