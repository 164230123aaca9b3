"""A third party's engine, installed as a distribution of its own, gets the suite with one import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conformance.plugins import write_distribution

PROGRAM = """
from diface.testing import check_differentiation

gaps = {"dual": {"linalg": "no rules for linear algebra on this one page"}}
print(check_differentiation(["dual"], gaps=gaps))
"""


def test_the_toy_engine_passes_in_a_process_of_its_own(tmp_path: Path) -> None:
    write_distribution(
        tmp_path, "toy-engine", {"dual": "toy_engine:DualGuest"}, {"toy_engine": "toy_engine:DUAL"}
    )
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tmp_path), str(tests), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], env={**os.environ, "PYTHONPATH": path}, text=True,
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "dual, hessian: " in run.stdout
    assert "not run: linalg: no rules for linear algebra" in run.stdout
