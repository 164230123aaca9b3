"""Out like in: library, dtype, device, layout, precision, sharing, and inputs that stay as they were."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

import diface
from diface.errors import UnsupportedError, UntracedOutputWarning
from diface.extend import convert, ledger, library_of
from tests.engines import require

ENGINES = ["jax", "torch", "autograd", "finite_diff", "complex_step"]


def f(v: Any) -> Any:
    xp = diface.array_namespace(v)
    return xp.sum(xp.sin(v) * v)


def df(v: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.cos(v) * v + np.sin(v)


def engine(name: str) -> str:
    if name in ("jax", "torch", "autograd"):
        require(name)
    return name


@pytest.fixture(params=ENGINES)
def backend(request: pytest.FixtureRequest) -> str:
    return engine(request.param)


def layouts() -> dict[str, np.ndarray[Any, Any]]:
    base = np.linspace(0.1, 1.2, 12).reshape(3, 4)
    read_only = base.copy()
    read_only.flags.writeable = False
    big = np.zeros(13 * 8 + 1, np.uint8)
    misaligned = big[1 : 1 + 12 * 8].view(np.float64)
    misaligned[:] = base.ravel()
    return {
        "C": base, "transposed": base.T, "Fortran": np.asfortranarray(base), "sliced": base[:, ::2],
        "reversed": base[::-1], "reversed 1-D": base.ravel()[::-1],
        "expanded": np.broadcast_to(base[0], (3, 4)), "size-1": base[:1, :1],
        "odd strides of size 1": np.lib.stride_tricks.as_strided(base, (1, 4), (1000, 8)),
        "zero-size": np.zeros((0, 3)), "0-d": np.array(0.42), "read-only": read_only,
        "misaligned": misaligned, "other byte order": base.astype(">f8"),
    }  # fmt: skip


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_layout(backend: str, layout: str) -> None:
    v = layouts()[layout]
    if layout == "zero-size" and backend == "complex_step":
        assert diface.gradient(f, backend, v).shape == (0, 3)
        return
    before = v.tobytes()
    y, g = diface.value_and_gradient(f, backend, v)
    assert isinstance(g, np.ndarray)
    assert g.shape == v.shape
    assert g.dtype == np.float64
    np.testing.assert_allclose(g, df(v), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(y, np.sum(np.sin(v) * v), rtol=1e-12)
    assert v.tobytes() == before
    g += 1  # the result is the caller's own
    assert v.tobytes() == before


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes(backend: str, dtype: str) -> None:
    v = np.linspace(0.1, 1.0, 5).astype(dtype)
    y, g = diface.value_and_gradient(f, backend, v)
    assert g.dtype == v.dtype
    assert np.asarray(y).dtype == v.dtype
    np.testing.assert_allclose(g, df(v), rtol=3e-2 if dtype == "float32" else 1e-6)


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_half_precision(name: str) -> None:
    v = np.linspace(0.5, 1.0, 5).astype(np.float16)
    g = diface.gradient(f, engine(name), v)
    assert g.dtype == np.float16
    np.testing.assert_allclose(g, df(v.astype(np.float64)), rtol=2e-2)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", ["jax", "torch", "autograd", "finite_diff"])
def test_complex_gradients_point_uphill(name: str, dtype: str) -> None:
    def energy(z: Any) -> Any:
        xp = diface.array_namespace(z)
        return xp.sum(xp.real(z * xp.conj(z)))

    z = np.array([3 + 4j, 1 - 2j], dtype)
    g = diface.gradient(energy, engine(name), z)
    assert g.dtype == z.dtype
    np.testing.assert_allclose(g, 2 * z, rtol=1e-2 if dtype == "complex64" else 1e-6)
    assert abs(diface.gradient(energy, name, 3 + 4j) - (6 + 8j)) < 1e-5


def test_python_floats(backend: str) -> None:
    y, g = diface.value_and_gradient(f, backend, 0.42)
    assert type(y) is float
    assert type(g) is float
    assert abs(g - float(df(np.array(0.42)))) < 1e-8
    dy = diface.derivative(lambda v: diface.array_namespace(v).stack([v, v * v]), backend, 0.5)
    assert isinstance(dy, np.ndarray)
    np.testing.assert_allclose(dy, [1.0, 1.0], rtol=1e-7)


def test_numpy_scalars(backend: str) -> None:
    y, g = diface.value_and_gradient(f, backend, np.float64(0.42))
    assert type(g) is np.float64
    assert type(y) is np.float64


def test_double_precision_with_the_flag_off() -> None:
    jax = require("jax")
    assert not jax.config.jax_enable_x64
    v = np.linspace(0.0, 1.0, 7)
    g = diface.gradient(f, "jax", v)
    np.testing.assert_allclose(g, df(v), rtol=1e-14, atol=1e-15)
    y, pull = diface.value_and_pullback_function(f, "jax", v)
    results = []
    thread = threading.Thread(target=lambda: results.append(pull(1.0)))
    thread.start()
    thread.join()
    np.testing.assert_allclose(results[0], df(v), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(y, np.sum(np.sin(v) * v), rtol=1e-14)
    assert not jax.config.jax_enable_x64
    assert jax.numpy.ones(1).dtype == np.float32


def test_double_precision_tensors_through_jax() -> None:
    jax, torch = require("jax"), require("torch")
    v = torch.linspace(0, 1, 7, dtype=torch.float64)
    g = diface.gradient(f, "jax", v)
    assert g.dtype == torch.float64
    np.testing.assert_allclose(g.numpy(), df(v.numpy()), rtol=1e-14, atol=1e-15)
    assert not jax.config.jax_enable_x64


def test_large_integer_constants_keep_their_value(backend: str) -> None:
    n = np.array([2**40 + 1], dtype=np.int64)

    def scaled(v: Any, n: Any) -> Any:
        return diface.array_namespace(v).sum(v * (n - 2**40))

    np.testing.assert_allclose(diface.gradient(scaled, backend, np.ones(3), n), np.ones(3), rtol=1e-9)


def test_python_integers_may_steer_a_loop(backend: str) -> None:
    def powers(v: Any, n: int) -> Any:
        total = v * 0
        for k in range(n):
            total = total + v**k
        return diface.array_namespace(v).sum(total)

    for n in (2, 4):
        expected = sum(k * 2.0 ** (k - 1) for k in range(1, n))
        np.testing.assert_allclose(
            diface.gradient(powers, backend, np.array([2.0]), n), [expected], rtol=1e-7
        )


def test_tensors_in_tensors_out(backend: str) -> None:
    torch = require("torch")
    v = torch.linspace(0.1, 1, 5, dtype=torch.float64)
    y, g = diface.value_and_gradient(f, backend, v)
    assert isinstance(g, torch.Tensor)
    assert isinstance(y, torch.Tensor)
    assert g.dtype == torch.float64
    assert not g.requires_grad
    assert v.grad is None
    np.testing.assert_allclose(g.numpy(), df(v.numpy()), rtol=1e-6)


def test_jax_arrays_in_jax_arrays_out(backend: str) -> None:
    jax = require("jax")
    v = jax.numpy.linspace(0.1, 1, 5)
    y, g = diface.value_and_gradient(f, backend, v)
    assert isinstance(g, jax.Array)
    assert isinstance(y, jax.Array)
    assert g.dtype == np.float32
    np.testing.assert_allclose(g, df(np.asarray(v)), rtol=3e-2)


def test_parameters_and_gradients_of_the_caller() -> None:
    torch = require("torch")
    p = torch.nn.Parameter(torch.linspace(0.1, 1, 5))
    for name in ENGINES:
        engine(name)
        g = diface.gradient(f, name, p)
        assert not g.requires_grad
        assert p.grad is None
        np.testing.assert_allclose(g.numpy(), df(p.detach().numpy()), rtol=5e-2)


def test_conjugated_tensors() -> None:
    torch = require("torch")
    z = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert z.is_conj()

    def energy(z: Any) -> Any:
        xp = diface.array_namespace(z)
        return xp.sum(xp.real(z * xp.conj(z)))

    for name in ("torch", "jax"):
        engine(name)
        np.testing.assert_allclose(
            diface.gradient(energy, name, z).resolve_conj().numpy(), 2 * z.resolve_conj().numpy(), rtol=1e-5
        )


def test_bfloat16_crosses_without_numpy() -> None:
    torch = require("torch")
    require("jax")
    v = torch.linspace(0.5, 1, 4, dtype=torch.bfloat16)
    g = diface.gradient(f, "jax", v)
    assert g.dtype == torch.bfloat16
    np.testing.assert_allclose(g.float().numpy(), df(v.float().numpy()), rtol=3e-2)


def test_memory_is_shared_where_it_can_be() -> None:
    torch = require("torch")
    seen = []

    def look(v: Any) -> Any:
        seen.append(v.data_ptr())
        return (v**2).sum()

    v = np.linspace(0, 1, 1000)
    with ledger() as crossings:
        diface.gradient(look, "torch", v)
    assert seen == [v.ctypes.data]
    assert all(crossing.shared for crossing in crossings)
    assert {(c.source, c.target) for c in crossings} == {("numpy", "torch"), ("torch", "numpy")}

    jax = require("jax")
    t = torch.linspace(0, 1, 1000)
    seen_jax = []

    def look_jax(v: Any) -> Any:
        if not isinstance(v, jax.core.Tracer):
            seen_jax.append(v.unsafe_buffer_pointer())
        return (v**2).sum()

    library = library_of(t)
    assert library is not None
    shared = convert(t, library, library_of(jax.numpy.ones(1)))  # type: ignore[arg-type]
    assert shared.unsafe_buffer_pointer() == t.data_ptr()
    back = convert(shared, library_of(shared), library)  # type: ignore[arg-type]
    assert back.data_ptr() == t.data_ptr()


def test_a_function_that_writes_into_its_input_gets_its_own_copy() -> None:
    torch = require("torch")

    def doubling(v: Any) -> Any:
        v.mul_(2)
        return (v**2).sum()

    for make in (np.array, torch.tensor, require("jax").numpy.array):
        v = make([1.0, 2.0])
        for _ in range(3):
            y, g = diface.value_and_gradient(doubling, "torch", v)
            assert float(y) == 20.0
            np.testing.assert_allclose(np.asarray(g), [8.0, 16.0])
            np.testing.assert_array_equal(np.asarray(v), [1.0, 2.0])
        ty = diface.pushforward(doubling, "torch", v, tangent=make([1.0, 0.0]))
        assert float(ty) == 8.0
        np.testing.assert_array_equal(np.asarray(v), [1.0, 2.0])


def test_constants_that_are_written_into(backend: str) -> None:
    def scale(v: Any, c: Any) -> Any:
        if backend != "jax":
            c *= 2
        return diface.array_namespace(v).sum(v * c)

    c = np.ones(3)
    expected = 1.0 if backend == "jax" else 2.0
    for _ in range(3):
        np.testing.assert_allclose(diface.gradient(scale, backend, np.ones(3), c), expected * np.ones(3), rtol=1e-8)
        np.testing.assert_array_equal(c, np.ones(3))


def test_identity_gives_the_caller_an_array_of_its_own(backend: str) -> None:
    v = np.array([1.0, 2.0])
    y, J = diface.value_and_jacobian(lambda v: v, backend, v)
    np.testing.assert_allclose(J, np.eye(2), atol=1e-9)
    y += 1
    np.testing.assert_array_equal(v, [1.0, 2.0])


def test_pull_after_the_caller_changed_the_input(backend: str) -> None:
    v = np.array([1.0, 2.0])
    _, pull = diface.value_and_pullback_function(f, backend, v)
    expected = df(v)
    v[:] = 100
    np.testing.assert_allclose(pull(1.0), expected, rtol=1e-6)


def test_a_tensor_changed_before_the_pullback_raises() -> None:
    torch = require("torch")
    v = torch.tensor([1.0, 2.0])
    _, pull = diface.value_and_pullback_function(f, "torch", v)
    v.add_(1)
    with pytest.raises(diface.errors.MutationError, match="changed in place"):
        pull(torch.tensor(1.0))


def test_the_value_and_pullback_run_the_function_once() -> None:
    for name in ("torch", "autograd", "jax"):
        engine(name)
        runs = []

        def counted(v: Any) -> Any:
            runs.append(1)  # noqa: B023
            return f(v)

        backend = diface.AutoJAX(jit=False) if name == "jax" else name
        _, pull = diface.value_and_pullback_function(counted, backend, np.ones(3))
        pull(1.0)
        pull(2.0)
        assert len(runs) == 1, name
        runs.clear()
        diface.value_and_gradient(counted, backend, np.ones(3))
        assert len(runs) == 1, name


@dataclasses.dataclass
class Pair:
    a: Any
    b: Any
    name: str = "pair"


def test_trees(backend: str) -> None:
    def g(t: Any) -> Any:
        xp = diface.array_namespace(t["p"].a)
        return xp.sum(xp.sin(t["p"].a)) + xp.sum(xp.cos(t["p"].b[0])) * t["c"]

    tree = {"p": Pair(np.ones(2), (np.zeros(3) + 0.5, None)), "c": 2.0, "s": "text"}
    out = diface.gradient(lambda p, rest: g({"p": p, **rest}), backend, tree["p"], {"c": 2.0, "s": "text"})
    assert isinstance(out, Pair)
    assert out.name is None  # nothing to differentiate
    np.testing.assert_allclose(out.a, np.cos(1.0) * np.ones(2), rtol=1e-7)
    np.testing.assert_allclose(out.b[0], -2 * np.sin(0.5) * np.ones(3), rtol=1e-7)
    assert out.b[1] is None


def test_nodes_that_only_one_engine_knows() -> None:
    jax, torch = require("jax"), require("torch")

    class Node:
        def __init__(self, a: Any, b: Any) -> None:
            self.a, self.b = a, b

    jax.tree_util.register_pytree_node(Node, lambda n: ((n.a, n.b), "key"), lambda _, c: Node(*c))
    out = diface.gradient(lambda n: torch.sum(n.a * n.b), "torch", Node(np.ones(2), np.arange(2.0)))
    assert isinstance(out, Node)
    np.testing.assert_array_equal(out.a, [0.0, 1.0])

    class TorchNode(Node):
        pass

    torch.utils._pytree.register_pytree_node(
        TorchNode, lambda n: ([n.a, n.b], None), lambda c, _: TorchNode(*c)
    )
    out = diface.gradient(lambda n: jax.numpy.sum(n.a * n.b), "jax", TorchNode(np.ones(2), np.arange(2.0)))
    assert isinstance(out, TorchNode)
    np.testing.assert_array_equal(out.b, [1.0, 1.0])


def test_mixed_callers() -> None:
    torch = require("torch")
    require("jax")
    ga, gb = diface.gradient(
        lambda a, b: (a * b).sum(), "jax", np.ones(2), torch.arange(2.0, dtype=torch.float64), argnums=(0, 1)
    )
    assert isinstance(ga, np.ndarray)
    assert isinstance(gb, torch.Tensor)
    np.testing.assert_array_equal(ga, [0.0, 1.0])


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_tracers_of_another_engine_are_refused() -> None:
    jax, torch = require("jax"), require("torch")
    with pytest.raises(UnsupportedError, match=r"being followed by jax"):
        jax.jit(lambda v: diface.gradient(f, "torch", v))(jax.numpy.ones(3))
    with pytest.raises(UnsupportedError, match=r"being followed by torch"):
        torch.func.vmap(lambda v: diface.gradient(f, "jax", v))(torch.ones(2, 3))
    with pytest.raises(UnsupportedError, match=r"being followed by torch"):
        torch.func.jacfwd(torch.func.jacfwd(lambda v: diface.gradient(f, "jax", v)))(torch.ones(3))


def test_operators_nest_in_their_own_engine() -> None:
    def cubes(v: Any) -> Any:
        return diface.array_namespace(v).sum(v**3)

    for name in ("jax", "torch", "autograd"):
        engine(name)

        def outer(v: Any) -> Any:
            return diface.array_namespace(v).sum(diface.gradient(cubes, name, v))  # noqa: B023

        np.testing.assert_allclose(diface.gradient(outer, name, np.arange(3.0)), 6 * np.arange(3.0))


def test_inside_an_engines_own_transformations() -> None:
    jax, torch = require("jax"), require("torch")
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    out = jax.jit(jax.vmap(lambda v: diface.gradient(f, "jax", v)))(x)
    np.testing.assert_allclose(out, df(x), rtol=1e-5, atol=1e-6)
    out = torch.func.vmap(lambda v: diface.gradient(f, "torch", v))(torch.from_numpy(x))
    np.testing.assert_allclose(out, df(x), rtol=1e-5, atol=1e-6)


def test_no_grad_and_inference_mode() -> None:
    torch = require("torch")
    v = torch.linspace(0, 1, 4)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            g = diface.gradient(f, "torch", v)
            inner = torch.linspace(0, 1, 4)
            h = diface.gradient(f, "torch", inner)
        np.testing.assert_allclose(g.numpy(), df(v.numpy()), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(h.numpy(), df(v.numpy()), rtol=1e-5, atol=1e-6)


def test_a_python_number_from_torch_is_told() -> None:
    torch = require("torch")
    with pytest.warns(UntracedOutputWarning, match=r"Python float .* its derivative is taken as zero"):
        g = diface.gradient(lambda v: float(v.detach().sum()), "torch", torch.ones(2))
    np.testing.assert_array_equal(g.numpy(), [0.0, 0.0])


def test_bool_outputs_are_not_differentiated() -> None:
    for name in ("jax", "torch"):
        engine(name)

        def both(v: Any) -> Any:
            return v * 2, v > 1

        y, ty = diface.value_and_pushforward(both, name, np.array([1.0, 2.0]), tangent=np.ones(2))
        np.testing.assert_array_equal(y[1], [False, True])
        np.testing.assert_array_equal(ty[0], [2.0, 2.0])
        assert ty[1].dtype == np.bool_
        tx = diface.pullback(both, name, np.ones(2), cotangent=(np.ones(2), None))
        np.testing.assert_array_equal(tx, [2.0, 2.0])


def test_branches_on_values_work_in_jax_with_a_warning() -> None:
    require("jax")

    def branch(v: Any) -> Any:
        return (v**2).sum() if v.sum() > 0 else -(v**2).sum()

    with pytest.warns(diface.errors.PerformanceWarning, match=r"branches on the values.*AutoJAX\(jit=False\)"):
        prep = diface.prepare("gradient", branch, "jax", np.ones(2))
    np.testing.assert_array_equal(prep(-np.ones(2)), [2.0, 2.0])
    np.testing.assert_array_equal(prep(np.ones(2)), [2.0, 2.0])
    quiet = diface.AutoJAX(jit=False)
    np.testing.assert_array_equal(diface.gradient(branch, quiet, -np.ones(2)), [2.0, 2.0])


def test_pullbacks_of_several_outputs(backend: str) -> None:
    def several(v: Any) -> Any:
        xp = diface.array_namespace(v)
        return xp.sum(v**3), {"twice": 2 * v}

    v = np.array([1.0, 2.0])
    tx = diface.pullback(several, backend, v, cotangent=(1.0, {"twice": np.ones(2)}))
    np.testing.assert_allclose(tx, 3 * v**2 + 2, rtol=1e-7)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_arrays_that_no_engine_understands_are_refused(backend: str) -> None:
    for odd in (np.ma.array([1.0, 2.0], mask=[False, True]), np.matrix([[1.0, 2.0]])):
        with pytest.raises(diface.errors.NotDifferentiableError, match=r"a plain array was expected\. Pass numpy"):
            diface.gradient(f, backend, odd)
    if backend in ("jax", "torch", "complex_step"):
        with pytest.raises(UnsupportedError, match=r"float128|longdouble"):
            diface.gradient(f, backend, np.ones(2, np.longdouble))


def test_empty_batches(backend: str) -> None:
    v, none = np.ones(2), np.zeros((0, 2))
    assert diface.pushforward(lambda v: v * 2, backend, v, tangent=none, batched=True).shape == (0, 2)
    assert diface.pullback(lambda v: v * 2, backend, v, cotangent=none, batched=True).shape == (0, 2)
    assert diface.hvp(f, backend, v, tangent=none, batched=True).shape == (0, 2)


def test_a_wrapped_function_of_python_numbers(backend: str) -> None:
    assert diface.DifferentiateWith(lambda v: v * 2.0, backend)(1.5) == 3.0
