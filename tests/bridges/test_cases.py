"""Cases that other bridges got wrong (each from a public report about mixing engines)."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import threading
import weakref
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest

import diface
from diface import DifferentiateWith
from diface.errors import UnsupportedError
from tests.engines import require

jax = require("jax")
torch = require("torch")
jnp = jax.numpy


def jax_square(x: Any) -> Any:
    """At the top of the module, so that it can be pickled."""
    return jnp.sum(x**2)


def value_and_backward(f: Any, x: Any) -> tuple[Any, Any]:
    leaf = x.detach().clone().requires_grad_()
    y = f(leaf)
    y.backward()
    return y.detach(), leaf.grad


def test_01_double_precision_with_the_flag_off() -> None:
    f = DifferentiateWith(lambda x: jnp.sum(jnp.sin(x) * x), "jax")
    x = torch.linspace(0, 1, 7, dtype=torch.float64)
    expected = (torch.cos(x) * x + torch.sin(x)).numpy()
    results = [value_and_backward(f, x)[1]]
    leaf = x.clone().requires_grad_()
    y = f(leaf)
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    results.append(leaf.grad)
    for g in results:
        np.testing.assert_allclose(g.numpy(), expected, rtol=1e-14, atol=1e-15)
    assert not jax.config.jax_enable_x64


def test_02_large_integers_keep_their_value() -> None:
    f = DifferentiateWith(lambda x, n: jnp.sum(x * (n - 2**40)), "jax")
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    f(x, torch.tensor([2**40 + 3])).backward()
    assert x.grad.tolist() == [3.0, 3.0, 3.0]


def test_03_complex_numbers_follow_the_hosts_convention() -> None:
    z = 3 + 4j
    f = DifferentiateWith(lambda z: jnp.sum(jnp.abs(z) ** 2), "jax")
    t = torch.tensor([z], dtype=torch.complex128, requires_grad=True)
    f(t).backward()
    assert t.grad.tolist() == [6 + 8j]
    g = DifferentiateWith(lambda z: torch.sum(torch.abs(z) ** 2), "torch")
    for run in (jax.grad(g), jax.jit(jax.grad(g))):
        np.testing.assert_allclose(run(jnp.array([z])), [6 - 8j], rtol=1e-6)
    # A holomorphic function, with a complex cotangent, against the host's own answer.
    ct = 0.5 - 1j
    cube = DifferentiateWith(lambda z: z**3, "torch")
    points = jnp.array([1 + 2j])
    for run in (lambda f: f, jax.jit):
        ours, theirs = (jax.vjp(f, points)[1](jnp.array([ct], points.dtype))[0] for f in (run(cube), lambda z: z**3))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    cube = DifferentiateWith(lambda z: z**3, "jax")
    p = torch.tensor([1 + 2j], requires_grad=True)
    q = p.detach().clone().requires_grad_()
    cube(p).backward(torch.tensor([ct]))
    (q**3).backward(torch.tensor([ct]))
    np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-5)


def test_04_a_guest_that_writes_into_its_input() -> None:
    def doubling(x: Any) -> Any:
        x.mul_(2)
        return torch.sum(x**2)

    f = DifferentiateWith(doubling, "torch")
    x = jnp.array([1.0, 2.0])
    for run in (jax.value_and_grad(f), jax.jit(jax.value_and_grad(f))):
        for _ in range(3):
            y, g = run(x)
            assert float(y) == 20.0
            np.testing.assert_array_equal(g, [8.0, 16.0])
            np.testing.assert_array_equal(x, [1.0, 2.0])
    v = np.array([1.0, 2.0])
    for _ in range(3):
        assert float(f(v)) == 20.0
        np.testing.assert_array_equal(v, [1.0, 2.0])


def test_05_changes_between_forward_and_backward() -> None:
    f = DifferentiateWith(lambda x: jnp.exp(x), "jax")
    x = torch.ones(3, requires_grad=True)
    base = x * 1
    y = f(base)
    base.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    for guest, exp in (("jax", jnp.exp), ("autograd", require("autograd.numpy").exp)):
        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        y = DifferentiateWith(lambda x, exp=exp: exp(x), guest)(x)
        y.mul_(3)  # an output that may be a residual as well
        y.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), 3 * np.e * np.ones(3), rtol=1e-12)


def test_06_dropout_shares_its_mask() -> None:
    f = DifferentiateWith(lambda x: torch.nn.functional.dropout(x, 0.5), "torch")
    x = jnp.ones(1000)
    for run in (lambda f: f, jax.jit):
        y, pull = jax.vjp(run(f), x)
        (g,) = pull(jnp.ones(1000))
        np.testing.assert_array_equal(y, g)
        assert 300 < int((y > 0).sum()) < 700


def test_07_bool_outputs() -> None:
    f = DifferentiateWith(lambda x: (torch.sum(x**2), x > 1), "torch")
    x = jnp.array([0.5, 2.0])

    def host(x: Any) -> Any:
        y, big = f(x)
        return y + jnp.sum(jnp.where(big, 10 * x, 0.0))

    for run in (jax.grad(host), jax.jit(jax.grad(host))):
        np.testing.assert_allclose(run(x), [1.0, 14.0])
    g = DifferentiateWith(lambda x: (jnp.sum(x**2), x > 1), "jax")
    t = torch.tensor([0.5, 2.0], requires_grad=True)
    y, big = g(t)
    assert big.dtype == torch.bool
    assert not big.requires_grad
    (y + torch.where(big, 10 * t, torch.zeros(2)).sum()).backward()
    np.testing.assert_allclose(t.grad, [1.0, 14.0])


def test_08_integer_arguments() -> None:
    f = DifferentiateWith(lambda x, i: jnp.sum(x[i] ** 2), "jax")
    x = torch.arange(4.0, requires_grad=True)
    f(x, torch.tensor([1, 3])).backward()
    assert x.grad.tolist() == [0.0, 2.0, 0.0, 6.0]
    g = DifferentiateWith(lambda x, i: torch.sum(x[i.long()] ** 2), "torch")
    for run in (jax.grad(g), jax.jit(jax.grad(g))):
        np.testing.assert_array_equal(run(jnp.arange(4.0), jnp.array([1, 3])), [0.0, 2.0, 0.0, 6.0])


def test_09_unused_outputs_and_arguments() -> None:
    f = DifferentiateWith(lambda x, unused: tuple(x * k for k in range(1, 6)), "jax")
    x, u = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    f(x, u)[1].sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    assert u.grad is None or u.grad.tolist() == [0.0, 0.0]
    g = DifferentiateWith(lambda x, unused: tuple(x * k for k in range(1, 6)), "torch")
    for run in (lambda h: h, jax.jit):
        gx, gu = run(jax.grad(lambda x, u: g(x, u)[1].sum(), argnums=(0, 1)))(jnp.ones(2), jnp.ones(2))
        np.testing.assert_array_equal(gx, [2.0, 2.0])
        np.testing.assert_array_equal(gu, [0.0, 0.0])


def test_10_odd_cotangents() -> None:
    f = DifferentiateWith(lambda x: jnp.sin(x), "jax")
    x = torch.linspace(0, 1, 4, requires_grad=True)
    f(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.cos(x.detach().numpy()), rtol=1e-6)
    x.grad = None
    torch.cat([x, f(x)])[3:6].pow(2).sum().backward()
    s, c = np.sin(x.detach().numpy()), np.cos(x.detach().numpy())
    expected = np.array([0, 0, 0, 2 * x[3].item()]) + np.array([2, 2, 0, 0]) * s * c
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-5)


def test_11_layouts() -> None:
    f = DifferentiateWith(lambda x: jnp.sum(jnp.sin(x)), "jax")
    base = torch.linspace(0.1, 1.2, 12).reshape(3, 4)
    for x in (base.T, base[:, ::2], base[:1, :1], base[0].expand(3, 4), base[0, 0], torch.zeros(0, 3), base.flip(0)):
        _, g = value_and_backward(f, x)
        np.testing.assert_allclose(g.numpy(), np.cos(x.numpy()), rtol=1e-5)
    h = DifferentiateWith(lambda x: torch.sum(torch.sin(x)), "torch")
    for v in (np.asarray(base).T, np.asarray(base)[::-1], np.float32(0.5), np.zeros((0, 2), np.float32)):
        np.testing.assert_allclose(jax.grad(h)(jnp.asarray(v)), np.cos(v), rtol=1e-5)
        np.testing.assert_allclose(h(v), np.sum(np.sin(v)), rtol=1e-5)


def test_12_bfloat16() -> None:
    f = DifferentiateWith(lambda x: jnp.sum(x * x), "jax")
    x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    y, g = value_and_backward(f, x)
    assert y.dtype == g.dtype == torch.bfloat16
    assert g.float().tolist() == [2.0, 4.0]
    h = DifferentiateWith(lambda x: torch.sum(x * x), "torch")
    for run in (jax.grad(h), jax.jit(jax.grad(h))):
        g = run(jnp.array([1.0, 2.0], jnp.bfloat16))
        assert g.dtype == jnp.bfloat16
        assert g.astype(jnp.float32).tolist() == [2.0, 4.0]


def test_13_vmap() -> None:
    f = DifferentiateWith(lambda x, y: torch.sum(x * torch.sin(y)), "torch")
    native = lambda x, y: jnp.sum(x * jnp.sin(y))  # noqa: E731
    X, Y = jnp.arange(6.0).reshape(2, 3), jnp.linspace(0, 1, 3)
    for make in (
        lambda f: jax.vmap(f, (0, None))(X, Y),
        lambda f: jax.vmap(f, (1, None))(X.T, Y),
        lambda f: jax.vmap(jax.vmap(f, (None, 0)), (0, None))(X, jnp.stack([Y, 2 * Y])),
        lambda f: jax.vmap(jax.jacfwd(f), (0, None))(X, Y),
        lambda f: jax.jacrev(lambda X: jax.vmap(f, (0, None))(X, Y))(X),
        lambda f: jax.vmap(jax.grad(f, 1), (0, None))(X, Y),
    ):
        for run in (make, lambda f, make=make: jax.jit(lambda: make(f))()):
            np.testing.assert_allclose(run(f), make(native), rtol=1e-5)
    g = DifferentiateWith(native, "jax")
    ours = lambda x, y: torch.sum(x * torch.sin(y))  # noqa: E731
    A, B = torch.arange(6.0).reshape(2, 3), torch.linspace(0, 1, 3)
    vmap, grad, jacrev, jacfwd = torch.func.vmap, torch.func.grad, torch.func.jacrev, torch.func.jacfwd
    with pytest.MonkeyPatch.context():
        diface.pushforward(torch.sin, "torch", B, tangent=B)  # loads PyTorch's forward rules, quietly
    for make in (
        lambda f: vmap(f, (0, None))(A, B),
        lambda f: vmap(f, (1, None))(A.T, B),
        lambda f: vmap(vmap(f, (None, 0)), (0, None))(A, torch.stack([B, 2 * B])),
        lambda f: vmap(jacfwd(f), (0, None))(A, B),
        lambda f: jacrev(lambda X: vmap(f, (0, None))(X, B))(A),
        lambda f: vmap(grad(f, 1), (0, None))(A, B),
    ):
        np.testing.assert_allclose(make(g), make(ours), rtol=1e-5)


def test_13_one_vectorised_call() -> None:
    runs = []

    def counted(x: Any) -> Any:
        runs.append(1)
        return torch.sum(torch.sin(x))

    f = DifferentiateWith(counted, "torch")
    X = jnp.arange(300.0).reshape(100, 3)
    for run in (jax.vmap(jax.grad(f)), jax.jit(jax.vmap(jax.grad(f)))):
        run(X)
        runs.clear()
        np.testing.assert_allclose(run(X), jnp.cos(X), atol=1e-5)
        assert len(runs) == 1


def test_14_fresh_lambdas_and_new_shapes() -> None:
    for _ in range(300):
        f = DifferentiateWith(lambda x: jnp.sum(x**2), "jax")
        value_and_backward(f, torch.ones(3))
    from diface._differentiate_with import _ROOTS

    before = len(_ROOTS)
    for k in range(300):
        f = DifferentiateWith(lambda x, k=k: torch.sum(x**2) + k, "torch")
        jax.grad(f)(jnp.ones(3))
    g = DifferentiateWith(lambda x: torch.sum(x**2), "torch")
    for k in range(1, 101):
        assert jax.grad(g)(jnp.ones(k)).shape == (k,)
    assert before <= len(_ROOTS) <= 256


def test_14_nothing_is_kept_alive() -> None:
    class Model:
        def __call__(self, x: Any) -> Any:
            return jnp.sum(x**2)

    model = Model()
    gone = weakref.ref(model)
    f = DifferentiateWith(model, "jax")
    leaf = torch.ones(3, requires_grad=True)
    y = f(leaf)
    del y
    from diface._differentiate_with import _ROOTS

    del f, model, leaf
    _ROOTS.clear()
    jax.clear_caches()
    gc.collect()
    assert gone() is None


def test_15_three_engines_deep_under_jit() -> None:
    inner = DifferentiateWith(lambda x: jnp.sin(x), "jax")
    middle = DifferentiateWith(lambda x: torch.sum(inner(x) * x), "torch")
    outer = jax.jit(jax.grad(lambda x: middle(jnp.cos(x))))
    x = jnp.linspace(0, 1, 256 * 256).reshape(256, 256)
    c = np.cos(x)
    expected = -np.sin(x) * (np.cos(c) * c + np.sin(c))
    for _ in range(20):
        np.testing.assert_allclose(outer(x), expected, rtol=1e-4, atol=1e-6)


def test_16_create_graph() -> None:
    for guest, f in (("jax", lambda x: jnp.sum(x**3)), ("autograd", lambda x: (x**3).sum())):
        if guest == "autograd":
            require("autograd")
        x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
        (g,) = torch.autograd.grad(DifferentiateWith(f, guest)(x), x, create_graph=True)
        assert g.requires_grad
        (h,) = torch.autograd.grad((g * torch.tensor([1.0, 10.0])).sum(), x)
        np.testing.assert_allclose(h.numpy(), [6.0, 120.0])


def test_17_identity() -> None:
    f = DifferentiateWith(lambda x: x, "jax")
    x = torch.ones(2, requires_grad=True)
    y = f(x)
    y.mul_(2)
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    g = DifferentiateWith(lambda x: x, "torch")
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: g(x).sum()))(jnp.ones(2)), [1.0, 1.0])


def test_18_no_grad_and_stop_gradient() -> None:
    f = DifferentiateWith(lambda x: jnp.sum(x**2), "jax")
    x = torch.ones(2, requires_grad=True)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            y = f(x)
        assert not y.requires_grad
        assert float(y) == 2.0
    g = DifferentiateWith(lambda x: torch.sum(x**2), "torch")
    stopped = jax.grad(lambda x: jax.lax.stop_gradient(g(x)) * x.sum())
    for run in (stopped, jax.jit(stopped)):
        np.testing.assert_array_equal(run(jnp.ones(2)), [2.0, 2.0])


def test_19_errors_keep_their_type_and_text() -> None:
    class MyError(Exception):
        pass

    def broken(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and type(x).__name__ != "FakeTensor":
            raise MyError("at this line")
        return x.sum()

    f = DifferentiateWith(broken, "torch")
    with pytest.raises(MyError, match="at this line") as caught:
        jax.grad(f)(jnp.ones(2))
    assert any(entry.name == "broken" for entry in caught.traceback)
    with pytest.raises(Exception, match="at this line"):
        jax.block_until_ready(jax.jit(f)(jnp.ones(2)))
    g = DifferentiateWith(lambda x: jnp.reshape(x, (5,)), "jax")
    with pytest.raises(TypeError, match="cannot reshape"):
        g(torch.ones(2, requires_grad=True))


def test_20_pickling_copying_processes() -> None:
    f = DifferentiateWith(jax_square, "jax", name="square")
    for other in (pickle.loads(pickle.dumps(f)), copy.deepcopy(f)):
        assert other.name == "square"
        assert value_and_backward(other, torch.ones(2))[1].tolist() == [2.0, 2.0]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert float(pool.submit(f, np.ones(3)).result()) == 3.0


def test_21_deleted_arrays() -> None:
    f = DifferentiateWith(lambda x: torch.sum(x**2), "torch")
    x = jnp.ones(3)
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        f(x)


def test_two_hosts_at_once_are_refused() -> None:
    f = DifferentiateWith(lambda x, y: (x * y).sum(), "finite_diff")
    with pytest.raises(UnsupportedError, match="differentiated by jax and torch at the same time"):
        jax.grad(lambda x: f(x, torch.ones(2, requires_grad=True)))(jnp.ones(2))


def test_functorch_wrappers_never_reach_a_guest() -> None:
    f = DifferentiateWith(lambda x: jnp.sum(jnp.sin(x)), "jax")
    diface.pushforward(torch.sin, "torch", torch.ones(1), tangent=torch.ones(1))
    H = torch.func.jacfwd(torch.func.jacfwd(f))(torch.linspace(0, 1, 3))
    np.testing.assert_allclose(H, -np.diag(np.sin(np.linspace(0, 1, 3))), atol=1e-6)


def test_structures_keywords_and_statics() -> None:
    def g(tree: Any, *, scale: Any, kind: str = "sum") -> Any:
        assert kind == "sum"
        return {"y": jnp.sum(tree["a"] * scale), "kind": kind, "n": 3, "none": None}

    f = DifferentiateWith(g, "jax")
    a = torch.ones(2, requires_grad=True)
    out = f({"a": a}, scale=torch.tensor([1.0, 2.0]), kind="sum")
    assert (out["kind"], out["n"], out["none"]) == ("sum", 3, None)
    out["y"].backward()
    assert a.grad.tolist() == [1.0, 2.0]
    h = DifferentiateWith(lambda tree, scale: {"y": torch.sum(tree["a"] * scale), "n": 3}, "torch")
    for run in (lambda k: k, jax.jit):
        np.testing.assert_array_equal(run(jax.grad(lambda a: h({"a": a}, 2.0)["y"]))(jnp.ones(2)), [2.0, 2.0])


def test_decorator_and_method() -> None:
    class Model:
        weight = 3.0

        @diface.differentiate_with("jax")
        def energy(self, x: Any) -> Any:
            """The energy."""
            return jnp.sum(self.weight * x**2)

    x = torch.ones(2, requires_grad=True)
    Model().energy(x).backward()
    assert x.grad.tolist() == [6.0, 6.0]
    assert Model.energy.__doc__ == "The energy."
    assert Model.energy.__name__ == "energy"


def test_declared_and_data_dependent_shapes() -> None:
    f = DifferentiateWith(lambda x: torch.cumsum(x, 0), "torch", out=np.empty(3, np.float32))
    np.testing.assert_array_equal(jax.jit(jax.jacobian(f))(jnp.ones(3)), np.tril(np.ones((3, 3))))
    runs = []

    def counted(x: Any) -> Any:
        runs.append(1)
        return (x**2).sum()

    g = DifferentiateWith(counted, "finite_diff", out=np.empty((), np.float32))
    jax.jit(g).lower(jnp.ones(3))
    assert not runs


def test_control_flow() -> None:
    f = DifferentiateWith(lambda x: torch.sin(x) * x, "torch")
    native = lambda x: jnp.sin(x) * x  # noqa: E731
    X = jnp.linspace(0.1, 1, 8)
    programs = [
        lambda f: lambda X: jax.lax.scan(lambda c, x: (c * 0.9 + f(x), f(c)), 0.5, X)[0],
        lambda f: lambda X: jax.lax.cond(X.sum() > 0, lambda: f(X).sum(), lambda: X.sum()),
        lambda f: lambda X: jax.checkpoint(lambda X: f(f(X)).sum())(X),
        lambda f: lambda X: jax.lax.fori_loop(0, 3, lambda _, c: f(c), X).sum(),
        lambda f: lambda X: jax.lax.map(f, X).sum(),
    ]
    for program in programs:
        for run in (lambda g: g, jax.jit):
            np.testing.assert_allclose(run(jax.grad(program(f)))(X), jax.grad(program(native))(X), rtol=1e-4, atol=1e-6)


def test_many_threads() -> None:
    f = DifferentiateWith(lambda x: torch.sum(torch.sin(x) * x), "torch")
    g = DifferentiateWith(lambda x: jnp.sum(jnp.sin(x) * x), "jax")
    step = jax.jit(jax.grad(f))
    failures: list[Any] = []

    def work(k: int) -> None:
        x = np.linspace(0, 1 + k, 50, dtype=np.float32)
        expected = np.cos(x) * x + np.sin(x)
        for _ in range(20):
            for out in (step(x), value_and_backward(g, torch.from_numpy(x))[1]):
                if not np.allclose(out, expected, rtol=1e-4, atol=1e-5):
                    failures.append((k, out))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_torch_compile() -> None:
    f = DifferentiateWith(lambda x: jnp.sum(jnp.sin(x)), "jax")

    @torch.compile(backend="eager")
    def program(x: Any) -> Any:
        return f(x * 2) + x.sum()

    x = torch.linspace(0, 1, 4, requires_grad=True)
    program(x).backward()
    np.testing.assert_allclose(x.grad, 2 * np.cos(2 * np.linspace(0, 1, 4)) + 1, rtol=1e-5)


_WEIGHT = 1.0


def test_another_global_or_closure_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    factor = jnp.float32(1.0)

    def scaled(x: Any) -> Any:
        return jnp.sum(x) * factor * _WEIGHT

    f = DifferentiateWith(scaled, "jax")
    x = torch.ones(2)
    for _ in range(3):
        assert value_and_backward(f, x)[1].tolist() == [1.0, 1.0]
    factor = jnp.float32(2.0)
    assert value_and_backward(f, x)[1].tolist() == [2.0, 2.0]
    monkeypatch.setitem(scaled.__globals__, "_WEIGHT", 3.0)
    assert value_and_backward(f, x)[1].tolist() == [6.0, 6.0]
