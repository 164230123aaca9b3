"""Several devices and processes: JAX's shard_map, PyTorch's DistributedDataParallel."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.engines import require

SHARD_MAP = """
import jax, jax.numpy as jnp, numpy as np, torch
from jax.sharding import Mesh, PartitionSpec as P
import diface
assert len(jax.devices()) == 4
f = diface.DifferentiateWith(lambda x: torch.sin(x) * x, "torch")
mesh = Mesh(np.array(jax.devices()), ("i",))
mapped = jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
x = jnp.linspace(0.0, 1.0, 8)
for run in (lambda h: h, jax.jit):
    np.testing.assert_allclose(run(mapped)(x), np.sin(x) * x, rtol=1e-6)
    g = run(jax.grad(lambda x: mapped(x).sum()))(x)
    np.testing.assert_allclose(g, np.cos(x) * x + np.sin(x), rtol=1e-5)
# An argument that is the same everywhere: its gradient is summed over the devices.
h = diface.DifferentiateWith(lambda w, x: torch.sin(x) * w, "torch")
scaled = jax.shard_map(h, mesh=mesh, in_specs=(P(), P("i")), out_specs=P("i"))
for run in (lambda h: h, jax.jit):
    g = run(jax.grad(lambda w: scaled(w, x).sum()))(jnp.float32(2.0))
    np.testing.assert_allclose(g, np.sin(x).sum(), rtol=1e-5)
print("right")
"""

DDP = """
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
import jax.numpy as jnp
import diface

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))
        self.f = diface.DifferentiateWith(lambda w, x: jnp.sum(jnp.sin(w) * x), "jax")

    def forward(self, x):
        return self.f(self.w, x)

def work(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(Model())
    x = torch.arange(3.0) + rank
    model(x).backward()
    expected = torch.cos(torch.ones(3)) * (torch.arange(3.0) + 0.5)
    assert torch.allclose(model.module.w.grad, expected), model.module.w.grad
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("right", flush=True)

if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


def run(code: str, path: os.PathLike[str], **environment: str) -> str:
    script = os.path.join(path, "program.py")
    with open(script, "w") as file:
        file.write(code)
    done = subprocess.run(
        [sys.executable, script, os.path.join(path, "store")],
        capture_output=True, text=True, timeout=240, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_shard_map(tmp_path: os.PathLike[str]) -> None:
    require("jax")
    require("torch")
    out = run(SHARD_MAP, tmp_path, XLA_FLAGS="--xla_force_host_platform_device_count=4")
    assert out.strip() == "right"


def test_distributed_data_parallel(tmp_path: os.PathLike[str]) -> None:
    require("jax")
    torch = require("torch")
    if not torch.distributed.is_gloo_available():
        pytest.skip("this build of PyTorch has no gloo")
    assert "right" in run(DDP, tmp_path)
