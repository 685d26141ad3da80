"""Warnings about sharded operands that are gathered; BUILD sets CPU_NUM_DEVICES."""

import os
import re
import warnings

import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
from testing import programs  # before the first computation
from testing.spmd import sharded
from testing.xla import register_host_kernels

from torch_xla_ext import custom_call, define_operator, ops

os.environ.setdefault("CPU_NUM_DEVICES", "2")  # before the first device is made

REFUSE = "TORCH_XLA_EXT_REFUSE_GATHERS"


@pytest.fixture(autouse=True, scope="module")
def operators(mesh: xs.Mesh) -> None:
    torch_xla.device()
    register_host_kernels("TestCopy", "TestSumDifferenceRound")
    for name, rule in (("whole", None), ("rows", "n _ -> n _"), ("pairs", "(k 2) _ -> (k 2) _")):
        define_operator(
            f"test_gather::{name}(Tensor a) -> Tensor",
            target="TestCopy",
            results=lambda a: [(a.shape, a.dtype)],
            payload=lambda a: a.numel().to_bytes(8, "little"),
            sharding_rule=rule,
        )


def test_an_operator_without_rule(mesh: xs.Mesh) -> None:
    a = torch.randn(8, 6)
    x = sharded(a, mesh, ("x", None))
    text = re.escape(
        "test_gather::whole: a, sharded as devices=[2, 1], is gathered before each call, 96 bytes "
        "on each device: there is no sharding rule"
    )
    with pytest.warns(UserWarning, match=text):
        result = torch.ops.test_gather.whole(x).cpu()
    assert torch.equal(result, a)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Another program with this call gives no second warning.
        assert torch.equal((torch.ops.test_gather.whole(x) * 2).cpu(), a * 2)


def test_a_dimension_that_the_rule_forbids(mesh: xs.Mesh) -> None:
    a = torch.randn(8, 4)
    x = sharded(a, mesh, (None, "x"))
    with pytest.warns(UserWarning, match=r"dimension 1, of 4, is one that each device needs whole"):
        assert torch.equal(torch.ops.test_gather.rows(x).cpu(), a)


def test_unequal_parts(mesh: xs.Mesh) -> None:
    a = torch.randn(6, 4)
    x = sharded(a, mesh, ("x", None))
    with pytest.warns(UserWarning, match="is not divided into 2 equal parts of k and 2"):
        assert torch.equal(torch.ops.test_gather.pairs(x).cpu(), a)


def test_payload_is_for_the_parts(mesh: xs.Mesh) -> None:
    a = torch.randn(8, 6)
    x = sharded(a, mesh, ("x", None))
    torch_xla.sync()
    with programs.compiled() as compiled, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(torch.ops.test_gather.rows(x).cpu(), a)
    program = compiled.with_target("TestCopy")
    assert programs.collectives(program) == []
    assert r"\030" in program  # 24 elements, half of 48


def test_caches_along_another_dimension(mesh: xs.Mesh) -> None:
    """Caches that are written in place keep their sharding."""
    caches = [torch.randn(4, 8, 2, 64) for _ in range(2)]
    placed = [sharded(cache, mesh, ("x", None, None, None)) for cache in caches]
    spec = torch_xla._XLAC._get_xla_sharding_spec(placed[0])
    with pytest.warns(
        UserWarning, match=r"key_cache, sharded as devices=\[2, 1, 1, 1\], is gathered"
    ):
        for step in range(2):
            key, value, slots = torch.randn(2, 64), torch.randn(2, 64), torch.tensor([step + 9])
            ops.kv_cache_update(*(x.to("xla") for x in (key[None], value[None], slots)), *placed)
            torch_xla.sync()
            for cache, token in zip(caches, (key, value), strict=True):
                cache[1, step + 1] = token
    for cache, expected in zip(placed, caches, strict=True):
        assert torch.equal(cache.cpu(), expected)
    assert torch_xla._XLAC._get_xla_sharding_spec(placed[0]) == spec


def test_refused(mesh: xs.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    x = sharded(torch.randn(8, 6), mesh, ("x", None))
    monkeypatch.setenv(REFUSE, "1")
    for i in range(2):
        with pytest.raises(RuntimeError, match=r"test_gather::whole: a, .*is gathered"):
            (torch.ops.test_gather.whole(x) + i).cpu()
    monkeypatch.setenv(REFUSE, "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ops.test_gather.whole(x).cpu()


def test_custom_call(mesh: xs.Mesh) -> None:
    a, b = torch.randn(8, 6), torch.randn(8, 6)
    x, y = sharded(a, mesh, ("x", None)), sharded(b, mesh, None)
    with pytest.warns(UserWarning, match=r"custom call 'XlaGpuSimpleAdd': inputs\[0\], sharded as"):
        (z,) = custom_call("XlaGpuSimpleAdd", [x, y], [x])
        assert torch.equal(z.cpu(), a + b)
    torch_xla.sync()
    with programs.compiled() as compiled, warnings.catch_warnings():
        warnings.simplefilter("error")
        (z,) = custom_call("XlaGpuSimpleAdd", [x, y], [x], sharding_rule="n m, n m -> n m")
        assert torch.equal(z.cpu(), a + b)
    assert programs.collectives(compiled.with_target("XlaGpuSimpleAdd")) == []


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("n m -> n m", "has 1 operands, but there are 2"),
        ("n, n -> n", r"has 1 dimensions for operand inputs\[0\], whose rank is 2"),
        ("n _, m _ -> n _", "m is in an operand, but not in result 0"),
        ("n m, m n -> n m", "operand 1 has 8 for m, but other operands imply 6"),
    ],
)
def test_wrong_rules_of_custom_call(mesh: xs.Mesh, rule: str, message: str) -> None:
    x = sharded(torch.randn(8, 6), mesh, ("x", None))
    with pytest.raises(ValueError, match=message):
        custom_call("XlaGpuSimpleAdd", [x, x], [x], sharding_rule=rule)


def test_parts_by_hand(mesh: xs.Mesh) -> None:
    """Tensors that the user has divided already give no warning, and are not changed."""
    a = torch.randn(8, 6)
    spec = ("x", None)
    shard = xs.enable_manual_sharding(sharded(a, mesh, spec), spec, mesh=mesh).global_tensor
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part = torch.ops.test_gather.whole(shard)
    whole = xs.disable_manual_sharding(part, spec, (8, 6), mesh=mesh).global_tensor
    assert torch.equal(whole.cpu(), a)
