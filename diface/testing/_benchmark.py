"""``benchmark_differentiation``: what each backend, scenario and operator costs, as a table."""

from __future__ import annotations

import functools
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

import diface
from diface._specs import Backend
from diface.errors import PerformanceWarning, UntracedOutputWarning
from diface.extend import cache_clear, ledger
from diface.testing._callers import Caller
from diface.testing._cases import Case, cases
from diface.testing._compare import as_numpy
from diface.testing._failures import label_of
from diface.testing._scenario import OPERATORS, Scenario

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["benchmark_differentiation"]

COLUMNS = (
    "backend", "scenario", "operator", "prepared", "calls", "samples", "evals", "time", "bytes_copied",
    "peak_memory", "compile_time", "error",
)  # fmt: skip


def benchmark_differentiation(
    backends: Iterable[Backend | str],
    scenarios: Iterable[Scenario] | None = None,
    *,
    callers: Iterable[str | Caller] = ("numpy",),
    operators: Iterable[str] | None = None,
    samples: int = 5,
    sample_time: float = 0.01,
) -> pd.DataFrame:
    """Measures what operators cost, prepared and not.

    Args:
        backends: The engines, as instances or short names.
        scenarios: The scenarios; ``default_scenarios()`` if ``None``.
        callers: Whose arrays are passed, as for ``check_differentiation``.
        operators: The operators to measure; all if ``None``.
        samples: How often each is timed; the shortest counts.
        sample_time: How long one sample takes about, in seconds.

    Returns:
        A table with a row for each case, prepared and not (cases with a declared gap are left out):
        ``calls``, how often one evaluation called the function (0 where a compiled one is used);
        ``samples`` and ``evals``, the number of samples and of evaluations in each; ``time``, the
        seconds of one evaluation, the least over the samples; ``bytes_copied``, the bytes that one
        evaluation copied between libraries; ``peak_memory``, the bytes that one evaluation allocated
        at its peak through Python and NumPy (by ``tracemalloc``: an engine's own allocator is not
        seen); ``compile_time``, the seconds that preparing took, or that the first unprepared call
        took beyond a later one; ``error``, the largest deviation from what is expected, relative to
        its largest element.

    Raises:
        ImportError: pandas is not installed.

    Example:
        >>> from diface.testing import default_scenarios
        >>> first = default_scenarios()[:1]
        >>> table = benchmark_differentiation(["finite_diff"], first, operators=["gradient"])
        >>> table[["backend", "operator", "prepared", "samples"]].values.tolist()
        [['finite_diff', 'gradient', False, 5], ['finite_diff', 'gradient', True, 5]]
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            "benchmark_differentiation: the table needs pandas, which is not installed. "
            'Run: pip install "diface[report]"'
        ) from error
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        warnings.simplefilter("ignore", UntracedOutputWarning)
        for case in cases(backends, scenarios, callers=callers, operators=operators):
            if case.gap is None:
                rows += [_measure(case, prepared, samples, sample_time) for prepared in (False, True)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


class _Counter:
    """A function that counts how often it is called."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.f(*args)


def _measure(case: Case, prepared: bool, samples: int, sample_time: float) -> dict[str, Any]:
    scenario, call, bring = case.scenario, OPERATORS[case.operator], case.caller.bring
    f = _Counter(scenario.f)
    args = tuple(bring(arg) for arg in scenario.args)
    vector = bring(getattr(scenario, call.vector)) if call.vector else None
    keywords: dict[str, Any] = {"argnums": scenario.argnums, "has_aux": scenario.has_aux}
    given: dict[str, Any] = {}
    if call.keyword is not None:
        given = {call.keyword: vector}
        keywords["batched"] = call.batched
    cache_clear()  # so that nobody finds what another row has compiled
    start = time.perf_counter()
    if prepared:
        evaluate = functools.partial(
            diface.prepare(call.operator, f, case.backend, *args, **given, **keywords), *args, **given
        )
    else:
        evaluate = functools.partial(
            getattr(diface, call.operator), f, case.backend, *args, **given, **keywords
        )
        evaluate()
    first = time.perf_counter() - start
    finish = functools.partial(_finish, evaluate, vector if call.linear else None, call.linear)
    finish()
    before = f.calls
    with ledger() as crossings:
        result = finish()
    calls = f.calls - before
    seconds, evals = _time(finish, samples, sample_time)
    return {
        "backend": label_of(case.backend),
        "scenario": scenario.name,
        "operator": case.operator,
        "prepared": prepared,
        "calls": calls,
        "samples": samples,
        "evals": evals,
        "time": seconds,
        "bytes_copied": sum(crossing.nbytes for crossing in crossings if not crossing.shared),
        "peak_memory": _peak(finish),
        "compile_time": first if prepared else max(first - seconds, 0.0),
        "error": _error(scenario.result_of(call), result, case.caller),
    }


def _finish(evaluate: Callable[[], Any], vector: Any, linear: bool) -> Any:
    result = evaluate()
    return (result[0], result[1](vector)) if linear else result


def _time(evaluate: Callable[[], Any], samples: int, sample_time: float) -> tuple[float, int]:
    # JAX returns before it is done, but NumPy and Python results wait; a caller of JAX arrays measures
    # the dispatch, as it would see it.
    start = time.perf_counter()
    evaluate()
    once = time.perf_counter() - start
    evals = max(1, int(sample_time / max(once, 1e-7)))
    times = []
    for _ in range(samples):
        start = time.perf_counter()
        for _ in range(evals):
            evaluate()
        times.append((time.perf_counter() - start) / evals)
    return min(times), evals


def _peak(evaluate: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        evaluate()
        return max(tracemalloc.get_traced_memory()[1] - base, 0)
    finally:
        tracemalloc.stop()


def _error(expected: Any, came: Any, caller: Caller) -> float:
    worst = 0.0
    for a, b in zip(as_numpy(expected, caller), as_numpy(came, caller), strict=True):
        if a.size:
            gap = float(np.max(np.abs(a - b)))
            worst = max(worst, gap / (float(np.max(np.abs(a))) or 1.0))
    return worst
