"""Operators with sharding rules on several devices, each with its part; BUILD sets their number."""

import json
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
from testing import programs  # before the first computation
from testing.paged import assert_close, int32
from testing.spmd import all_sharded, mesh_of, run
from testing.spmd import sharded as placed
from testing.ways import run_by
from testing.xla import PLATFORM

from torch_xla_ext import ops
from torch_xla_ext.sharding import DeviceCall, partitioned_call
from xla_kernels.attention import cudnn

os.environ.setdefault("CPU_NUM_DEVICES", "2")  # before the first device is made
pytestmark = pytest.mark.usefixtures("num_devices", "nothing_is_gathered")

SCALE = 64**-0.5
HEADS = (None, "model", None)
CACHE = (None, None, "model", None)


def batch(kv_heads: int = 4, heads: int = 8) -> tuple[torch.Tensor, ...]:
    """query, key_cache, value_cache, block_tables, context_lens of paged_attention."""
    caches = torch.randn(2, 10, 16, kv_heads, 64).bfloat16()
    query = torch.randn(4, heads, 64).bfloat16()
    tables = torch.randperm(10, dtype=torch.int32)[:8].view(4, 2)
    return query, caches[0], caches[1], tables, int32([32, 1, 17, 0])


def target_of(function: Callable) -> str:
    return f"XlaGpu{function.__name__.title().replace('_', '')}"


def check(result: torch.Tensor, expected: torch.Tensor) -> None:
    """Compares with the CPU's kernel; a GPU's results may differ by rounding."""
    if PLATFORM == "Host":
        assert torch.equal(result, expected)
    else:
        assert_close(result, expected.double())


def check_parts(function: Callable, tensors: tuple, args: list, *rest: object) -> str:
    """Checks a call of which each device computes a part by itself; returns the program."""
    result, program = run(lambda: function(*args, *rest), target_of(function))
    check(result, function(*tensors, *rest))
    assert programs.collectives(program) == []
    return program


def check_attention(tensors: tuple, mesh: xs.Mesh, specs: tuple) -> str:
    """Runs paged_attention and returns its program; operands without a spec are intermediate."""
    args = all_sharded(tensors, mesh, specs)

    def attend() -> torch.Tensor:
        traced = [
            arg if spec else (arg.float() * 1).to(arg.dtype)
            for arg, spec in zip(args, specs, strict=True)
        ]
        return ops.paged_attention(*traced, SCALE)

    result, program = run(attend, "XlaGpuPagedAttention")
    check(result, ops.paged_attention(*tensors, SCALE))
    return program


@pytest.mark.parametrize("query", [None, HEADS, (None, None, None)], ids=str)
def test_heads_of_paged_attention(model: xs.Mesh, num_devices: int, query: tuple | None) -> None:
    tensors = batch()
    program = check_attention(tensors, model, (query, CACHE, CACHE, None, None))
    assert programs.collectives(program) == []
    assert f"bf16[10,16,{4 // num_devices},64]" in program
    assert "bf16[10,16,4,64]" not in program


def test_a_result_is_sharded_as_the_rule_says(model: xs.Mesh, num_devices: int) -> None:
    query, *others = batch()
    caches = all_sharded(others[:2], model, (CACHE, CACHE))
    rest = all_sharded((query, *others[2:]), model, [None] * 3)
    result = ops.paged_attention(rest[0], *caches, *rest[1:], SCALE)
    torch_xla.sync()
    assert result.shape == (4, 8, 64)
    shards = torch_xla._XLAC._get_local_shards([result])
    assert [tuple(shard.shape) for shard, _ in shards[0]] == [
        (4, 8 // num_devices, 64)
    ] * num_devices


def test_more_devices_than_kv_heads(model: xs.Mesh, num_devices: int) -> None:
    """Each device has one kv head, and a part of this head's query heads."""
    tensors = batch(kv_heads=1)
    program = check_attention(tensors, model, (HEADS, (None,) * 4, (None,) * 4, None, None))
    assert programs.collectives(program) == []
    assert f"bf16[4,{8 // num_devices},64]" in program


def test_alibi_slopes(model: xs.Mesh) -> None:
    tensors, slopes = batch(), torch.rand(8)
    specs = (None, CACHE, CACHE, None, None)
    args = all_sharded(tensors, model, specs)
    result, program = run(
        lambda: ops.paged_attention(*args, SCALE, alibi_slopes=slopes.to("xla")),
        "XlaGpuPagedAttention",
    )
    check(result, ops.paged_attention(*tensors, SCALE, alibi_slopes=slopes))
    assert programs.collectives(program) == []


def test_sequences_of_paged_attention(num_devices: int) -> None:
    data = mesh_of(data=num_devices)
    specs = (("data", None, None), None, None, ("data", None), ("data",))
    program = check_attention(batch(), data, specs)
    assert programs.collectives(program) == []
    assert f"bf16[{4 // num_devices},8,64]" in program


def test_sequences_and_heads(num_devices: int) -> None:
    if num_devices < 4:
        pytest.skip("needs 4 devices")
    both = mesh_of(data=2, model=2)
    specs = (None, CACHE, CACHE, ("data", None), ("data",))
    program = check_attention(batch(), both, specs)
    assert programs.collectives(program) == []
    assert "bf16[2,4,64]" in program


def test_heads_of_ragged_paged_attention(model: xs.Mesh, num_devices: int) -> None:
    pages = torch.randn(6, 16, 8, 64).bfloat16()
    q = torch.randn(8, 8, 64).bfloat16()
    others = (int32([3, 21, 0]), int32([[5, 0], [1, 4], [0, 0]]), int32([0, 3, 4, 0]), int32([2]))
    tensors = q, pages, *others
    args = all_sharded(tensors, model, (None, CACHE, *[None] * 4))
    program = check_parts(ops.ragged_paged_attention, tensors, args, SCALE)
    assert f"bf16[6,16,{8 // num_devices},64]" in program


def check_with_lse(
    function: Callable, tensors: tuple, args: list[torch.Tensor], sinks: torch.Tensor
) -> str:
    """Checks both results, and returns the program."""
    results = []

    def attend() -> torch.Tensor:
        results[:] = function(*args, SCALE, sinks=sinks.to("xla"), return_lse=True)
        return results[0]

    out, program = run(attend, target_of(function))
    expected = function(*tensors, SCALE, sinks=sinks, return_lse=True)
    check(out, expected[0])
    torch.testing.assert_close(results[1].cpu(), expected[1])
    assert programs.collectives(program) == []
    return program


def test_second_result_of_sharded_heads(model: xs.Mesh, num_devices: int) -> None:
    tensors, sinks = batch(), torch.linspace(-2, 2, 8)
    specs = (None, CACHE, CACHE, None, None)
    args = all_sharded(tensors, model, specs)
    program = check_with_lse(ops.paged_attention, tensors, args, sinks)
    assert f"f32[4,{8 // num_devices}]" in program
    pages = torch.randn(6, 16, 8, 64).bfloat16()
    others = (int32([3, 21, 0]), int32([[5, 0], [1, 4], [0, 0]]), int32([0, 3, 4, 0]), int32([2]))
    tensors = torch.randn(8, 8, 64).bfloat16(), pages, *others
    specs = (None, CACHE, *[None] * 4)
    args = all_sharded(tensors, model, specs)
    program = check_with_lse(ops.ragged_paged_attention, tensors, args, sinks)
    assert f"f32[8,{8 // num_devices}]" in program


def test_second_result_of_sharded_sequences(num_devices: int) -> None:
    """The second result is sharded like an operand, although no operand has its shape."""
    data = mesh_of(data=num_devices)
    specs = (("data", None, None), None, None, ("data", None), ("data",))
    tensors = batch()
    args = all_sharded(tensors, data, specs)
    program = check_with_lse(ops.paged_attention, tensors, args, torch.linspace(-2, 2, 8))
    assert f"f32[{4 // num_devices},8]" in program


def test_latent_attention(num_devices: int) -> None:
    """Heads and sequences are divided; each device has the whole cache."""
    cache = torch.randn(10, 16, 576).bfloat16()
    query = torch.randn(4, 8, 576).bfloat16()
    tensors = query, cache, *batch()[3:]
    for axis, spec in (("data", ("data", None, None)), ("model", HEADS)):
        mesh = mesh_of(**{axis: num_devices})
        args = all_sharded(tensors, mesh, (spec, *[None] * 3))
        check_parts(ops.mla_paged_attention, tensors, args, SCALE)


def run_as(way: str, step: Callable, caches: list[torch.Tensor]) -> Callable:
    """The step as users run it; compiled, it donates caches, as in docs/paged_attention.md."""

    def donating(*args: torch.Tensor) -> torch.Tensor:
        for cache in caches:
            torch.ops.xla.dynamo_set_buffer_donor_(cache, True)
        return step(*args)

    return run_by(way, donating if way == "openxla" else step, fullgraph=True)


def one_step(
    caches: list[torch.Tensor], key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    if len(caches) == 2:
        ops.kv_cache_update(key, value, slots, *caches)
    else:
        ops.kv_pages_update(key, value, slots, *caches)


@pytest.mark.parametrize("way", ["lazy", "openxla", "captured"])
@pytest.mark.parametrize("num_caches", [1, 2])
def test_in_place(model: xs.Mesh, num_devices: int, num_caches: int, way: str) -> None:
    """The program has no copy and no gather of the caches, and donates their buffers."""
    heads = 8 // num_caches
    expected = [torch.randn(7, 8, heads, 64).bfloat16() for _ in range(num_caches)]
    caches = [placed(cache, model, CACHE) for cache in expected]
    spec = torch_xla._XLAC._get_xla_sharding_spec(caches[0])

    def step(key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        one_step(caches, key * 2, value * 2, slots)
        return slots + 1

    function = run_as(way, step, caches)
    with programs.compiled() as compiled:
        for position in range(3):
            key, value = torch.randn(2, 3, 4, 64).bfloat16()
            slots = torch.tensor([position, 20 + position, -1])
            args = [placed(x, model) for x in (key, value, slots)]
            result = function(*args)
            torch_xla.sync()
            assert torch.equal(result.cpu(), slots + 1)
            one_step(expected, key * 2, value * 2, slots)
            for cache, other in zip(caches, expected, strict=True):
                assert torch.equal(cache.cpu(), other)
    target = "XlaGpuKvCacheUpdate" if num_caches == 2 else "XlaGpuKvPagesUpdate"
    for program in [text for text in compiled if target in text]:
        shape = f"bf16[7,8,{heads // num_devices},64]"
        assert shape in program and f"bf16[7,8,{heads},64]" not in program
        assert programs.collectives(program) == []
        assert programs.copies(program, shape) == []
        assert program.partition("\n")[0].count("may-alias") == num_caches
    assert torch_xla._XLAC._get_xla_sharding_spec(caches[0]) == spec


@pytest.mark.parametrize("way", ["lazy", "openxla", "captured"])
def test_a_step(model: xs.Mesh, num_devices: int, way: str) -> None:
    """A step of projections, a cache in place and attention needs just one all-reduce."""
    _, *others = batch()
    projections = {"qkv": torch.randn(16 * 64, 32) / 6, "out": torch.randn(32, 8 * 64) / 20}
    weights = {
        "qkv": placed(projections["qkv"], model, ("model", None)),
        "out": placed(projections["out"], model, (None, "model")),
    }
    caches = all_sharded(others[:2], model, (CACHE, CACHE))
    expected_caches = [cache.clone() for cache in others[:2]]

    def layer(
        x: torch.Tensor, slots: torch.Tensor, tables: torch.Tensor, lens: torch.Tensor, on: dict
    ) -> torch.Tensor:
        groups = (x @ on["qkv"].t()).unflatten(-1, (4, 4, 64)).bfloat16()
        q, k, v = groups[:, :, :2].flatten(1, 2), groups[:, :, 2], groups[:, :, 3]
        ops.kv_cache_update(k, v, slots, *on["caches"])
        found = ops.paged_attention(q, *on["caches"], tables, lens, SCALE)
        return found.flatten(1).float() @ on["out"].t()

    def step(*args: torch.Tensor) -> torch.Tensor:
        return layer(*args, {**weights, "caches": caches})

    function = run_as(way, step, caches)
    with programs.compiled() as compiled:
        for position in range(2):
            x, slots = torch.randn(4, 32), torch.tensor([5, 19, 33, 60]) + position
            args = (x, slots, *others[2:])
            result = function(*(placed(arg, model) for arg in args))
            torch_xla.sync()
            want = layer(*args, {**projections, "caches": expected_caches})
            torch.testing.assert_close(result.cpu(), want, atol=1e-2, rtol=1e-2)
    steps = [text for text in compiled if "XlaGpuPagedAttention" in text]
    assert steps
    for program in steps:
        assert programs.collectives(program) == ["all-reduce f32[4,32]{1,0}"]
        shape = f"bf16[10,16,{4 // num_devices},64]"
        assert shape in program and programs.copies(program, shape) == []


ROWS, COLUMNS = ("x", None), (None, "x")


@pytest.mark.parametrize(
    ("specs", "collectives"),
    [
        ((ROWS, None), []),
        ((None, COLUMNS), []),
        ((ROWS, ROWS), []),
        ((ROWS, COLUMNS), ["all-to-all"]),  # the second operand is resharded like the first
    ],
)
def test_elements(num_devices: int, specs: tuple, collectives: list[str]) -> None:
    tensors = torch.randn(8, 12), torch.randn(8, 12)
    x, y = all_sharded(tensors, mesh_of(x=num_devices), specs)
    result, program = run(lambda: ops.simple_add(x, y), "XlaGpuSimpleAdd")
    assert torch.equal(result, sum(tensors))
    assert [each.split()[0] for each in programs.collectives(program)] == collectives
    assert "f32[8,12]" not in program.partition("XlaGpuSimpleAdd")[0].rpartition("\n")[2]


def test_devices_in_another_order(num_devices: int) -> None:
    tensors = torch.randn(8, 12), torch.randn(8, 12)
    reversed_mesh = xs.Mesh(np.arange(num_devices)[::-1].copy(), (num_devices,), ("x",))
    x, y = placed(tensors[0], reversed_mesh, ROWS), placed(tensors[1], reversed_mesh, None)
    check_parts(ops.simple_add, tensors, [x, y])


def test_gradient(num_devices: int) -> None:
    a, b = torch.randn(8, 12), torch.randn(8, 12)
    line = mesh_of(x=num_devices)
    x, y = (placed(t, line, ("x", None)).requires_grad_() for t in (a, b))
    torch_xla.sync()
    with programs.compiled() as compiled:
        ops.simple_add(x, y).pow(2).sum().backward()
        torch_xla.sync()
    for each in (x, y):
        torch.testing.assert_close(each.grad.cpu(), 2 * (a + b))
    assert programs.collectives(compiled.with_target("XlaGpuSimpleAdd")) == []


def test_vmap(num_devices: int) -> None:
    a, b = torch.randn(8, 5, 3), torch.randn(5, 3)
    line = mesh_of(x=num_devices)
    x, y = placed(a, line, ("x", None, None)), placed(b, line)
    result, program = run(
        lambda: torch.vmap(ops.simple_add, in_dims=(0, None))(x, y), "XlaGpuSimpleAdd"
    )
    assert torch.equal(result, a + b)
    assert programs.collectives(program) == []


@pytest.mark.parametrize("way", ["lazy", "openxla", "captured"])
def test_replicated_state_beside_sharded(model: xs.Mesh, num_devices: int, way: str) -> None:
    """Replicated state beside sharded tensors keeps its value; upstream's torch.compile lost it."""
    weight, count = torch.randn(8, 16), torch.zeros(8, dtype=torch.int32)
    sharded = placed(weight, model, (None, "model"))
    state = placed(count, model, (None,))

    def step(x: torch.Tensor) -> torch.Tensor:
        result = (sharded * x).sum(1) + state
        state.copy_((sharded * x).argmax(1))
        return result

    function = run_as(way, step, [])
    for i in range(3):
        x = torch.randn(16)
        result = function(placed(x, model))
        torch_xla.sync()
        torch.testing.assert_close(result.cpu(), (weight * x).sum(1) + count)
        count = (weight * x).argmax(1).int()
        assert torch.equal(state.cpu(), count), i


@pytest.mark.parametrize("way", ["openxla", "captured"])
def test_compiled_for_each_sharding(num_devices: int, way: str) -> None:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ops.simple_add(x, y) * 2

    function = run_by(way, add, fullgraph=True)
    line = mesh_of(x=num_devices)
    for spec in [("x", None), (None, "x"), ("x", None), None]:
        a, b = torch.randn(8, 12), torch.randn(8, 12)
        result = function(placed(a, line, spec), placed(b, line))
        assert torch.equal(result.cpu(), (a + b) * 2)


@pytest.mark.parametrize("kv_heads", [8, 4, 1])
@pytest.mark.parametrize("spec", [HEADS, ("model", None, None)], ids=["heads", "batch"])
def test_attention_of_cudnn(
    model: xs.Mesh, num_devices: int, spec: tuple, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device calls cuDNN for its own heads or examples. On the CPU, XLA refuses the call."""
    monkeypatch.setattr(torch_xla.runtime, "device_type", lambda: "CUDA")
    calls: list[DeviceCall] = []
    divide = partitioned_call._divide

    def recorded(*args: object) -> DeviceCall:
        calls.append(divide(*args))
        return calls[-1]

    torch_xla._XLAC._xla_register_partitioners(
        partitioned_call._infer, partitioned_call._propagate, recorded
    )
    heads = {"q": 8, "k": kv_heads, "v": kv_heads}
    shapes = {name: (4, count, 16, 64) for name, count in heads.items()}
    is_divided = spec[0] is not None or kv_heads >= num_devices
    specs = {name: (*spec, None) if is_divided or name == "q" else None for name in heads}
    q, k, v = (
        placed(torch.randn(shapes[name]).bfloat16(), model, specs[name]).requires_grad_()
        for name in heads
    )
    result = cudnn.cudnn_attention(q * 1, k * 1, v * 1, causal=True, sm_scale=0.5)
    result.backward(torch.ones_like(result))
    with pytest.raises((RuntimeError, ValueError), match=r"cudnn|fmha"):
        torch_xla.sync()
    own = {name: list(shape) for name, shape in shapes.items()}
    dim = spec.index("model")
    for name, shape in own.items():
        shape[dim] = shape[dim] // num_devices if specs[name] else 1
        if name != "q" and not specs[name]:
            shape[dim] = kv_heads
    forward, backward = sorted(calls, key=lambda call: len(call.operand_shapes))[:2]
    first = [(b, s, h, d) for b, h, s, d in map(tuple, own.values())]
    assert [tuple(shape) for shape in forward.operand_shapes] == first
    assert tuple(forward.result_shapes[0]) == tuple(own["q"])
    assert [tuple(shape) for shape in backward.result_shapes[:3]] == [*map(tuple, own.values())]
    dims = [str(own["q"][0]), str(own["q"][1]), "16", "16"]
    assert f'"dimensions": {json.dumps(dims)}' in forward.payload.decode()
    # Query heads of one kv head on several devices: its gradients are sums over the devices.
    assert [bool(groups) for groups in backward.sums] == [False, not is_divided, not is_divided]
