"""Faults of engines that we work around: each test tells when its workaround can go."""

from __future__ import annotations

import subprocess
import sys

from tests.engines import require


def test_torch_still_warns_about_its_own_forward_rules() -> None:
    require("torch")
    code = (
        "import warnings, torch\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    torch.func.jvp(torch.sin, (torch.ones(2),), (torch.ones(2),))\n"
        "print(any('torch.jit.script' in str(w.message) for w in caught))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True", "torch_backend._load_forward_rules can go for this version"
