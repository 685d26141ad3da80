"""Ordinary programs, one after another in one process: each computes its own numbers.

Upstream torch_xla 2.8.1 runs the program of `(a + a) + b` for `(a + b) + b`, because its hash of a
program does not depend on which parameter is which operand.
"""

import ctypes

import pytest
import torch
import torch_xla
from testing.ways import run_by

import torch_xla_ext
from torch_xla_ext import ops


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return (torch.tensor([1.0, 2, 3], device="xla"), torch.tensor([10.0, 20, 30], device="xla"))


def test_sums_of_the_same_tensors_in_another_order() -> None:
    a, b = tensors()
    assert ((a + a) + b).tolist() == [12, 24, 36]
    assert ((a + b) + b).tolist() == [21, 42, 63]
    assert ((b + a) + a).tolist() == [12, 24, 36]
    assert ((a + b) + a).tolist() == [12, 24, 36]


def test_compiled_sums() -> None:
    a, b = tensors()
    first = torch.compile(lambda a, b: (a * a) - b, backend="openxla")
    second = torch.compile(lambda a, b: (a * b) - b, backend="openxla")
    assert first(a, b).tolist() == [-9, -16, -21]
    assert second(a, b).tolist() == [0, 20, 60]
    assert first(b, a).tolist() == [99, 398, 897]


def test_results_in_another_order() -> None:
    a, b = tensors()
    for swap in (False, True):
        total, product = a + b, a * b
        torch_xla._XLAC._xla_sync_multi(
            [product, total] if swap else [total, product], [], True, True
        )
        assert total.tolist() == [11, 22, 33]
        assert product.tolist() == [10, 40, 90]


def test_several_results_of_one_operation() -> None:
    a = torch.tensor([3.0, 1, 2], device="xla")
    values = a.sort().values
    assert (values * 2).tolist() == [2, 4, 6]
    values = a.sort(descending=True).values
    assert (values * 2).tolist() == [6, 4, 2]
    low, high = torch.arange(4.0, device="xla").split(2)
    assert (low - high).tolist() == [-2, -2]
    assert (high - low).tolist() == [2, 2]


def test_views_of_one_tensor() -> None:
    x = torch.arange(12.0, device="xla").reshape(3, 4)
    torch_xla.sync()
    assert (x[0] + x[1] - x[2]).tolist() == [-4, -3, -2, -1]
    assert (x[0] + x[2] - x[1]).tolist() == [4, 5, 6, 7]
    assert (x[:, 0] + x[:, 0] - x[:, 1]).tolist() == [-1, 3, 7]
    assert (x[:, 0] + x[:, 1] - x[:, 1]).tolist() == [0, 4, 8]


def test_updates_in_place() -> None:
    """Steps whose buffers are donated: the same operations with the operands exchanged."""
    a, b = tensors()
    torch_xla.sync()
    a += b
    b.mul_(a)
    torch_xla.sync()
    assert (a.tolist(), b.tolist()) == ([11, 22, 33], [110, 440, 990])
    b += a
    a.mul_(b)
    torch_xla.sync()
    assert (a.tolist(), b.tolist()) == ([1331, 10164, 33759], [121, 462, 1023])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("way", ["lazy", "openxla", "captured"])
def test_old_value_of_a_copys_destination(way: str, dtype: torch.dtype) -> None:
    """torch.compile moved the copy before reads of the old value, which then gave the new value."""
    state = torch.zeros(4, dtype=dtype)
    on_device = state.to("xla")

    def step(x: torch.Tensor) -> torch.Tensor:
        result = x + on_device
        on_device.copy_(x * 3)
        return result

    run = run_by(way, step)
    for _ in range(3):
        x = torch.randint(1, 9, (4,)).float()
        result = run(x.to("xla"))
        torch_xla.sync()
        assert torch.equal(result.cpu(), x + state)
        state = (x * 3).to(dtype)
        assert torch.equal(on_device.cpu(), state)


def test_functional_copy() -> None:
    old, new = torch.ones(2, 3).to("xla"), torch.full((3,), 7).to("xla")
    result = torch.ops.aten.copy(old, new)
    assert torch.equal(result.cpu(), torch.full((2, 3), 7.0))
    assert torch.equal(old.cpu(), torch.ones(2, 3))


def test_kernels_with_operands_in_another_order() -> None:
    a, b = tensors()
    for api in ("untyped", "ffi"):

        def add(x: torch.Tensor, y: torch.Tensor, api: str = api) -> torch.Tensor:
            (result,) = torch_xla_ext.custom_call("XlaGpuSimpleAdd", [x, y], [x], api=api)
            return result

        assert add(add(a, a), b).tolist() == [12, 24, 36]
        assert add(add(a, b), b).tolist() == [21, 42, 63]


def test_operands_of_one_kernel() -> None:
    pointers = ctypes.POINTER(ctypes.c_void_p)
    kernel = ctypes.CFUNCTYPE(
        None, pointers, pointers, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
    )

    @kernel
    def add_three(out: object, operands: object, *others: object) -> None:
        floats = [(ctypes.c_float * 3).from_address(operands[i]) for i in range(3)]
        (ctypes.c_float * 3).from_address(out[0])[:] = [
            sum(column) for column in zip(*floats, strict=True)
        ]

    torch_xla_ext.register_custom_call("TestAddThree", add_three, platform="Host")
    a, b = tensors()

    def add(*operands: torch.Tensor) -> list[float]:
        (total,) = torch_xla_ext.custom_call("TestAddThree", operands, [a])
        return total.tolist()

    assert add(a, a, b) == [12, 24, 36]
    assert add(a, b, b) == [21, 42, 63]


def test_call_after_one_that_was_refused() -> None:
    """In eager mode the refused call's program has run, with the same cache for both arguments."""
    torch_xla.experimental.eager_mode(True)
    try:
        tokens = torch.ones(2, 1, 4, device="xla")
        slots = torch.tensor([1, 9], device="xla")

        def caches() -> list[torch.Tensor]:
            return [torch.zeros(4, 8, 1, 4, device="xla") for _ in range(2)]

        def check(values: torch.Tensor, total: float) -> None:
            updated = caches()
            ops.kv_cache_update(tokens, values, slots, *updated)
            assert [cache.sum().item() for cache in updated] == [8, total]

        doubled = 2 * tokens
        check(tokens, 8)
        with pytest.raises(ValueError, match="must not overlap"):
            ops.kv_cache_update(tokens, doubled, slots, *[caches()[0]] * 2)
        check(doubled, 16)
    finally:
        torch_xla.experimental.eager_mode(False)


@pytest.mark.parametrize("view", [False, True])
def test_clone_that_was_read_before_its_source_is_written(view: bool) -> None:
    """In upstream torch_xla the clone has no value then: Check failed: handle->HasValue()."""
    source = torch.arange(4.0, device="xla")
    if view:
        source = source.view(2, 2)
    torch_xla.sync()
    before = source.clone()
    assert before.cpu().flatten().tolist() == [0, 1, 2, 3]
    for step in range(1, 4):
        source.add_(1)
        torch_xla.sync()
        assert before.cpu().flatten().tolist() == [0, 1, 2, 3]
        assert source.cpu().flatten().tolist() == [step, step + 1, step + 2, step + 3]
    before.add_(10)
    torch_xla.sync()
    assert before.cpu().flatten().tolist() == [10, 11, 12, 13]
    assert source.cpu().flatten().tolist() == [3, 4, 5, 6]
