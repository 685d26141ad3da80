"""Calls of operators with XLA tensors cache their checks, but only for equal arguments."""

import threading
from collections.abc import Callable

import pytest
import torch
from testing.xla import graph_hash, register_host_kernels

from torch_xla_ext import custom_call, debug, define_operator, ops
from torch_xla_ext.registry import registration
from xla_kernels.signature import check as signature_check
from xla_kernels.signature import untyped_payload

calls: list[dict[str, object]] = []


def _attributes(**args: object) -> dict[str, object]:
    calls.append(args)
    return {}


@pytest.fixture(scope="module")
def counted() -> Callable[..., torch.Tensor]:
    """An operator that counts the calls of its `attributes`."""
    define_operator(
        "test_cached::add(Tensor a, Tensor b, float? f=None, int n=0, bool flag=False, "
        "str text='') -> Tensor",
        target="XlaGpuSimpleAdd",
        attributes=_attributes,
        environment=["TEST_CACHED"],
    )
    return torch.ops.test_cached.add


@pytest.fixture
def count(counted: Callable[..., torch.Tensor]) -> Callable[..., int]:
    """Calls the operator; returns how often it called `attributes`."""

    def call(*args: object) -> int:
        calls.clear()
        result = counted(*args)
        assert result.cpu().tolist() == (args[0].cpu() + args[1].cpu()).tolist()
        return len(calls)

    return call


def tensors(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return torch.ones(shape, dtype=dtype).to("xla"), torch.ones(shape, dtype=dtype).to("xla")


def test_a_second_call_is_not_checked_again(count: Callable[..., int]) -> None:
    assert count(*tensors(11)) == 1
    assert count(*tensors(11)) == 0


def test_a_first_call_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator checks arrays and parameters, and custom_call does not check them again."""
    checks: list[str] = []
    for module, name in ((untyped_payload, "parameter_values"), (signature_check, "check")):
        check = getattr(module, name)

        def counted_check(
            *args: object, name: str = name, check: Callable[..., object] = check
        ) -> object:
            checks.append(name)
            return check(*args)

        monkeypatch.setattr(module, name, counted_check)
    a, b = tensors(5, 1, 7)
    ops.simple_add(a, b).cpu()
    assert checks == ["parameter_values"]
    custom_call("XlaGpuSimpleAdd", [a, b], [a])
    assert checks[1:] == ["parameter_values", "check"]


def test_other_arguments_are_other_calls(
    count: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = [
        (*tensors(12),),
        (*tensors(3, 4),),
        (*tensors(4, 3),),
        (*tensors(12, 1),),
        (*tensors(12, dtype=torch.int32),),
        (*tensors(12), 0.0),
        (*tensors(12), -0.0),
        (*tensors(12), 1.0),
        (*tensors(12), None, 1),
        (*tensors(12), None, 2),
        (*tensors(12), None, 0, True),
        (*tensors(12), None, 0, False, "a"),
        (*tensors(12), None, 0, False, "b"),
    ]
    assert [count(*args) for args in variants] == [1] * len(variants)
    assert [count(*args) for args in variants] == [0] * len(variants)
    monkeypatch.setenv("TEST_CACHED", "1")
    assert count(*variants[0]) == 1
    monkeypatch.setenv("TEST_CACHED", "")
    assert count(*variants[0]) == 1
    monkeypatch.delenv("TEST_CACHED")
    assert count(*variants[0]) == 0
    # For a float, 1 and True are 1.0, as in torch, and the kernel receives 1.0.
    assert count(*tensors(12), 1) == 0


def test_a_wrong_call_stays_wrong(device: torch.device) -> None:
    a, b = tensors(5)
    for _ in range(2):
        assert ops.simple_add(a, b).cpu().tolist() == [2] * 5
        with pytest.raises(TypeError, match="xla_gpu::simple_add: "):
            torch.ops.xla_gpu.simple_add(a, b.int())
        with pytest.raises(ValueError, match="xla_gpu::simple_add: "):
            torch.ops.xla_gpu.simple_add(a, tensors(6)[0])
        with pytest.raises(ValueError, match="must be on the device of"):
            torch.ops.xla_gpu.simple_add(a, b.cpu())


def test_without_a_promise_functions_run_at_every_call() -> None:
    define_operator(
        "test_cached::unsure(Tensor a, Tensor b) -> Tensor",
        target="XlaGpuSimpleAdd",
        attributes=_attributes,
    )
    calls.clear()
    for _ in range(3):
        torch.ops.test_cached.unsure(*tensors(2))
    assert len(calls) == 3


def test_a_registration_clears_the_cache(count: Callable[..., int]) -> None:
    assert [count(*tensors(13)) for _ in range(2)] == [1, 0]
    register_host_kernels("TestEcho")
    assert [count(*tensors(13)) for _ in range(2)] == [1, 0]


def test_a_reference_replaces_the_kernel_within_its_block(count: Callable[..., int]) -> None:
    a, b = tensors(14)
    assert count(a, b) == 1
    reference = registration.default_api("XlaGpuSimpleAdd")
    assert reference == "ffi"
    with debug.use_reference("XlaGpuSimpleAdd"):
        assert not debug.custom_calls(torch.ops.test_cached.add(a, b))
        assert not debug.custom_calls(ops.simple_add(a, b))
        with pytest.raises(ValueError, match="xla_gpu::simple_add: "):
            ops.simple_add(a, tensors(6)[0])
    assert len(debug.custom_calls(torch.ops.test_cached.add(a, b))) == 1
    assert count(a, b) == 0


def test_another_thread_keeps_the_kernel() -> None:
    found: list[int] = []
    with debug.use_reference("XlaGpuSimpleAdd"):
        thread = threading.Thread(
            target=lambda: found.append(len(debug.custom_calls(ops.simple_add(*tensors(3)))))
        )
        thread.start()
        thread.join()
    assert found == [1]


def test_the_graph_is_that_of_a_first_call() -> None:
    """A cached call traces the same graph as an uncached one."""
    a, b = tensors(15)
    first = ops.simple_add(a, b)
    second = ops.simple_add(a, b)
    assert graph_hash(first) == graph_hash(second)


def test_in_place_operators_write_each_calls_values(device: torch.device) -> None:
    key = torch.randn(2, 1, 64).to(torch.bfloat16)
    value = torch.randn(2, 1, 64).to(torch.bfloat16)
    caches = [torch.zeros(3, 8, 1, 64, dtype=torch.bfloat16) for _ in range(2)]
    on_xla = [cache.to(device) for cache in caches]
    view = on_xla[0][1]
    for slots in ([3, 9], [9, 20], [0, 3]):
        slot_mapping = torch.tensor(slots, dtype=torch.int32)
        ops.kv_cache_update(key, value, slot_mapping, *caches)
        ops.kv_cache_update(key.to(device), value.to(device), slot_mapping.to(device), *on_xla)
        key, value = key + 1, value - 1
    for cache, other in zip(caches, on_xla, strict=True):
        assert torch.equal(cache, other.cpu())
    assert torch.equal(view.cpu(), caches[0][1])
    with pytest.raises(ValueError, match="must not overlap"):
        ops.kv_cache_update(
            key.to(device), value.to(device), slot_mapping.to(device), on_xla[0], on_xla[0]
        )


def test_gradients_and_tangents_of_cached_calls() -> None:
    a, b = tensors(16)
    ops.simple_add(a, b)
    a.requires_grad_()
    (ops.simple_add(a, b) * 3).sum().backward()
    assert a.grad.cpu().tolist() == [3] * 16
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a.detach(), b)
        tangent = torch.autograd.forward_ad.unpack_dual(ops.simple_add(dual, b)).tangent
        assert tangent.cpu().tolist() == [1] * 16
