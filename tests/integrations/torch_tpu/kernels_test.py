"""Kernels by name: registration, operators, programs of torch.compile, tensors written in place."""

import os

import pytest
import torch
import torch_xla_gpu
from torch_xla_gpu import ops
from torch_xla_gpu.custom_call import stablehlo

from xla_kernels import ArrayType

TPU = torch_xla_gpu.device.TYPE
SCALE = os.environ["SCALE_LIBRARY"]


def _operands(*shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [(10 * torch.randn(shape, generator=generator)).to(dtype) for _ in range(2)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64]
)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3, 5)])
def test_simple_add(shape: tuple[int, ...], dtype: torch.dtype, compiled: bool) -> None:
    a, b = _operands(*shape, dtype=dtype)
    function = torch.compile(ops.simple_add, fullgraph=True) if compiled else ops.simple_add
    assert torch.equal(function(a.to(TPU), b.to(TPU)).cpu(), a + b)


def test_operands_are_row_major() -> None:
    a, b = _operands(3, 4)
    on_device = a.to(TPU), b.to(TPU)
    assert torch.equal(ops.simple_add(on_device[0].t(), on_device[1].t()).cpu(), (a + b).t())
    assert torch.equal(
        ops.simple_add(on_device[0][:, 1:3], on_device[1][:, ::2]).cpu(), a[:, 1:3] + b[:, ::2]
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(compiled: bool) -> None:
    def loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(ops.simple_add(a * 2, b)).square().sum()

    a, b = _operands(3, 4)
    expected = [x.clone().requires_grad_() for x in (a, b)]
    torch.relu(expected[0] * 2 + expected[1]).square().sum().backward()
    leaves = [x.to(TPU).requires_grad_() for x in (a, b)]
    (torch.compile(loss, fullgraph=True) if compiled else loss)(*leaves).backward()
    for leaf, other in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad.cpu(), other.grad)


def test_a_compiled_function_is_one_program() -> None:
    debugs = []
    function = torch.compile(
        lambda a, b: torch.relu(ops.simple_add(a * 2, b)) - 1,
        fullgraph=True,
        options={"debug_callback": debugs.append},
    )
    a, b = _operands(3, 4)
    function(a.to(TPU), b.to(TPU))
    (text,) = debugs[0].stablehlo_forward_text
    assert text.count("stablehlo.custom_call @XlaGpuSimpleAdd") == 1
    assert "api_version = 4" in text
    assert "stablehlo.multiply" in text


def test_the_layout_of_a_result() -> None:
    results = ArrayType((2, 3), torch.float32), ArrayType((4, 5), torch.float32)
    text = stablehlo._module("own", (), results, None, b"", (), ((1, (1, 0)),), (), False)
    row_major, column_major = (f"dense<[{order}]> : tensor<2xindex>" for order in ("1, 0", "0, 1"))
    assert f"result_layouts = [{row_major}, {column_major}]" in text


def test_a_batch() -> None:
    a, b = _operands(3, 4)
    assert torch.equal(torch.vmap(ops.simple_add)(a.to(TPU), b.to(TPU)).cpu(), a + b)


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_a_batch_by_the_name_of_a_rule(method: str) -> None:
    operator = torch_xla_gpu.define_operator(
        "my_ns::add_batches(Tensor a, Tensor b) -> Tensor",
        target="XlaGpuSimpleAdd",
        vmap_method=method,
        replace=True,
    )
    a, b = _operands(3, 4)
    assert torch.equal(torch.vmap(operator)(a.to(TPU), b.to(TPU)).cpu(), a + b)


def test_operands_on_two_devices() -> None:
    with pytest.raises(ValueError, match="b must be on the device of a, tpu:0, but is on cpu"):
        ops.simple_add(torch.ones(3, device=TPU), torch.ones(3))


@pytest.mark.skipif(
    torch_xla_gpu.device.current().platform == "CUDA", reason="the library is for the CPU"
)
def test_a_library_of_ones_own() -> None:
    platform = torch_xla_gpu.device.current().platform
    assert torch_xla_gpu.register_kernel("XlaGpuScale", SCALE) == [("XlaGpuScale", platform)]
    torch_xla_gpu.define_operator(
        "my_ns::scale(Tensor x, float factor) -> Tensor", target="XlaGpuScale", replace=True
    )
    x = torch.arange(6.0)
    function = torch.compile(lambda x: torch.ops.my_ns.scale(x, 2.5) + 1, fullgraph=True)
    assert torch.equal(torch.ops.my_ns.scale(x.to(TPU), 2.5).cpu(), 2.5 * x)
    assert torch.equal(function(x.to(TPU)).cpu(), 2.5 * x + 1)


def test_a_kernel_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match=r"has no kernel 'XlaGpuScael'.* XlaGpuScale"):
        torch_xla_gpu.register_kernel("XlaGpuScael", SCALE)
    with pytest.raises(FileNotFoundError, match=r"/nowhere\.so: no such file"):
        torch_xla_gpu.register_kernel("XlaGpuScale", "/nowhere.so")
    with pytest.raises(TypeError, match=r"the order is register_kernel\(name, library\)"):
        torch_xla_gpu.register_kernel(3, SCALE)
    with pytest.raises(ValueError, match=r"no kernel 'XlaGpuSimpelAdd'.*did you mean 'XlaGpuSimpl"):
        torch_xla_gpu.define_operator("my_ns::f(Tensor x) -> Tensor", target="XlaGpuSimpelAdd")


@pytest.mark.skipif(
    torch_xla_gpu.device.current().platform == "CUDA", reason="a GPU has the kernel"
)
def test_a_kernel_of_another_platform() -> None:
    assert "XlaGpuAllReduce" not in [target.name for target in torch_xla_gpu.registered_targets()]
    with pytest.raises(NotImplementedError, match="'XlaGpuAllReduce' has no entry for 'Host'"):
        torch.ops.xla_gpu.all_reduce(
            torch.ones(2, 4, device=TPU), torch.zeros(1, 3, dtype=torch.int64, device=TPU)
        )


def _cache() -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    caches = [torch.zeros(2, 8, 1, 4, device=TPU) for _ in range(2)]
    tokens = torch.arange(1.0, 9, device=TPU).reshape(2, 1, 4)
    return caches, tokens, torch.tensor([13, -1], device=TPU)


@pytest.mark.parametrize("compiled", [False, True])
def test_tensors_that_are_written_to(compiled: bool) -> None:
    (keys, values), tokens, slots = _cache()
    rows = keys.view(16, 4)

    def step(tokens: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        before = keys.sum()
        ops.kv_cache_update(tokens, -tokens, slots, keys, values)
        return keys.sum() + before

    function = torch.compile(step, fullgraph=True) if compiled else step
    assert function(tokens, keys, values).item() == 10
    assert function(2 * tokens, keys, values).item() == 30
    assert torch.equal(rows[13].cpu(), torch.tensor([2.0, 4, 6, 8]))
    assert values.sum().item() == -20


def test_a_function_of_a_kernel_that_writes_leaves_its_arguments() -> None:
    updated = torch_xla_gpu.define_operator(
        "my_ns::updated(Tensor key, Tensor value, Tensor slot_mapping, Tensor key_cache, "
        "Tensor value_cache) -> (Tensor, Tensor)",
        target="XlaGpuKvCacheUpdate",
        attributes=lambda **args: {
            "key_scale": 1.0,
            "value_scale": 1.0,
            "report_out_of_range": False,
        },
        replace=True,
    )
    (keys, values), tokens, slots = _cache()
    assert keys.sum().item() == 0
    results = updated(tokens, -tokens, slots, keys, values)
    assert [result.sum().item() for result in results] == [10, -10]
    assert keys.sum().item() == 0


def test_a_part_of_a_tensor_is_written_to() -> None:
    (_, values), tokens, slots = _cache()
    whole = torch.zeros(3, 2, 8, 1, 4, device=TPU)
    ops.kv_cache_update(tokens, -tokens, slots, whole[1], values)
    assert torch.equal(whole.sum((1, 2, 3, 4)).cpu(), torch.tensor([0.0, 10, 0]))
    with pytest.raises(ValueError, match="must not overlap"):
        ops.kv_cache_update(tokens, -tokens, slots, values, values)


@pytest.mark.parametrize("compiled", [False, True])
def test_paged_attention(compiled: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 64, generator=generator)
    keys, values = (torch.randn(4, 16, 2, 64, generator=generator) for _ in range(2))
    tables, lengths = torch.tensor([[2, 0], [3, 1]]), torch.tensor([20, 9])
    expected = []
    for row, table, length in zip(query, tables, lengths, strict=True):
        k, v = (x[table].flatten(0, 1)[:length].repeat_interleave(2, 1) for x in (keys, values))
        weights = (torch.einsum("hd,lhd->hl", row, k) * 0.125).softmax(-1)
        expected.append(torch.einsum("hl,lhd->hd", weights, v))

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        return ops.paged_attention(*tensors, 0.125)

    operands = [x.to(TPU) for x in (query, keys, values, tables.int(), lengths.int())]
    result = (torch.compile(attend, fullgraph=True) if compiled else attend)(*operands)
    torch.testing.assert_close(result.cpu(), torch.stack(expected), rtol=1e-4, atol=1e-4)
