"""Deferred tensors give the results of ordinary tensors, however a model uses them."""

from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm_xla_gpu import linear, overrides
from vllm_xla_gpu.deferred import Column, ShardedColumns, gate_and_up, rotation_of

TOKENS, SHARDS, HEADS, HEAD_DIM = 5, 2, (6, 2, 2), 8
WIDTHS = [HEAD_DIM * heads for heads in HEADS]
POSITIONS = torch.arange(TOKENS)


def _columns() -> tuple[ShardedColumns, torch.Tensor]:
    """Returns queries, keys and values as ShardedColumns, and as one tensor."""
    by_shard = torch.randn(TOKENS, SHARDS, sum(WIDTHS) // SHARDS)
    widths = [width // SHARDS for width in WIDTHS]
    whole = [part.flatten(1) for part in by_shard.split(widths, dim=-1)]
    return ShardedColumns(by_shard, widths), torch.cat(whole, dim=-1)


def _contiguous(parts: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Makes the parts contiguous, as XLA's tensors always are."""
    return [part.contiguous() if isinstance(part, torch.Tensor) else part for part in parts]


def _norm(cls: type[torch.nn.Module], width: int) -> torch.nn.Module:
    norm = cls(width, eps=0.1)
    norm.weight.data.normal_()
    return norm


HEAD_SHAPE = (-1, HEAD_DIM)
SPELLINGS: dict[str, Callable] = {
    "qwen3": lambda x, norm: norm(x.view(*x.shape[:-1], *HEAD_SHAPE)).view(x.shape),
    "glm4": lambda x, norm: norm(x.reshape(-1, x.shape[-1] // HEAD_DIM, HEAD_DIM)).reshape(x.shape),
    "gemma3": lambda x, norm: norm(x.unflatten(-1, HEAD_SHAPE)).flatten(-2, -1),
    "apertus": lambda x, norm: norm(x.view(-1, HEAD_DIM)).view(x.shape),
    "none": lambda x, norm: x.contiguous(),
}


@pytest.fixture(autouse=True)
def _config() -> Iterator[None]:
    overrides.apply("runner")
    with set_current_vllm_config(VllmConfig()):
        yield


@torch.no_grad()
@pytest.mark.parametrize("cls", [RMSNorm, GemmaRMSNorm])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_norms_of_heads(spelling: str, cls: type[torch.nn.Module]) -> None:
    columns, whole = _columns()
    norms = [_norm(cls, HEAD_DIM) for _ in range(2)]
    rope = RotaryEmbedding(HEAD_DIM, HEAD_DIM, 16, 10000, True, torch.float32)
    results = []
    for tensor in (columns, whole):
        q, k, v = _contiguous(tensor.split(WIDTHS, dim=-1))
        q, k = (SPELLINGS[spelling](x, norm) for x, norm in zip((q, k), norms, strict=True))
        results.append((*rope.forward_native(POSITIONS, q, k), v))
    rotation = rotation_of(*results[0])
    for i, norm in enumerate(norms):
        deferred = (rotation.query, rotation.key)[i].norm
        if spelling == "none":
            assert deferred is None
        else:
            assert deferred.layer is norm
            assert deferred.adds_one == (cls is GemmaRMSNorm)
    for deferred, expected in zip(*results, strict=True):
        torch.testing.assert_close(deferred.whole, expected, rtol=0, atol=0)
    assert rotation_of(*results[0]) is None  # something has read them


def _scaled(x: torch.Tensor) -> torch.Tensor:
    x.mul_(3)
    return x


# Other changes that a model may make to the queries.
@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda x, norm: _scaled(x),
        lambda x, norm: x.view(-1, HEAD_DIM).mul_(2).view(x.shape),
        lambda x, norm: _scaled(norm(x.view(-1, HEAD_DIM))).view(x.shape),
        lambda x, norm: _scaled(norm(x.view(-1, HEAD_DIM)).view(x.shape)),
        lambda x, norm: norm(norm(x.view(-1, HEAD_DIM))).view(x.shape),
        lambda x, norm: norm(x.view(-1, HEAD_DIM) + 1).view(x.shape),
        lambda x, norm: norm(x.view(-1, HEAD_DIM), x.view(-1, HEAD_DIM))[0].view(x.shape),
    ],
)
def test_other_uses_are_computed(change: Callable) -> None:
    columns, whole = _columns()
    norm = _norm(RMSNorm, HEAD_DIM)
    rope = RotaryEmbedding(HEAD_DIM, HEAD_DIM, 16, 10000, True, torch.float32)
    results = []
    for tensor in (columns, whole):
        q, k, v = _contiguous(tensor.split(WIDTHS, dim=-1))
        results.append((*rope.forward_native(POSITIONS, change(q, norm), k), v))
    assert rotation_of(*results[0]) is None
    for deferred, expected in zip(*results, strict=True):
        torch.testing.assert_close(getattr(deferred, "whole", deferred), expected, rtol=0, atol=0)


@torch.no_grad()
def test_a_norm_of_values_is_computed() -> None:
    columns, whole = _columns()
    norm = _norm(RMSNorm, HEAD_DIM)
    rope = RotaryEmbedding(HEAD_DIM, HEAD_DIM, 16, 10000, True, torch.float32)
    q, k, v = columns.split(WIDTHS, dim=-1)
    value = norm(v.view(TOKENS, -1, HEAD_DIM))
    assert rotation_of(*rope.forward_native(POSITIONS, q, k), value) is None
    expected = norm(whole[:, -WIDTHS[2] :].reshape(TOKENS, -1, HEAD_DIM))
    assert torch.equal(value.whole, expected)


@torch.no_grad()
def test_a_residual_is_added_in_its_dtype() -> None:
    torch.manual_seed(0)
    layer = _norm(RMSNorm, 64).bfloat16()
    x, residual = torch.randn(2, 5, 64, dtype=torch.bfloat16)
    result, total = layer.forward_native(x, residual)
    assert torch.equal(total, x + residual)
    assert torch.equal(result, layer.forward_native(total))


def test_columns_that_change_in_place() -> None:
    columns, whole = _columns()
    columns.clamp_(min=-0.5, max=0.5)
    whole.clamp_(min=-0.5, max=0.5)
    for part, expected in zip(columns.split(WIDTHS, dim=-1), whole.split(WIDTHS, -1), strict=True):
        assert not isinstance(part, Column)
        assert torch.equal(part, expected)
    assert torch.equal(columns[..., : WIDTHS[0]], whole[..., : WIDTHS[0]])


@torch.no_grad()
def test_other_dtypes_and_widths() -> None:
    columns, whole = _columns()
    q, expected = columns.split(WIDTHS, dim=-1)[0], whole.split(WIDTHS, dim=-1)[0]
    assert torch.equal(q.view(torch.int32), expected.contiguous().view(torch.int32))
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        q.view(-1, WIDTHS[0] + 1)
    norm = _norm(RMSNorm, WIDTHS[0])
    assert torch.equal(norm(q).whole, norm(expected))


def _halved(gate_and_up: torch.Tensor) -> torch.Tensor:
    gate_and_up[..., :4] *= 0.5
    return SiluAndMul()(gate_and_up)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "swiglu": lambda x: SiluAndMul()(x),
    "chunks": lambda x: torch.mul(*(x.chunk(2, dim=-1))),
    "slices": lambda x: x[..., : x.shape[-1] // 2] - x[..., x.shape[-1] // 2 :],
    "whole": lambda x: x.float().sum(-1),
    "changed": _halved,
}


@torch.no_grad()
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gate_and_up(activation: str, shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "LEAST_COLUMNS", 1)
    width = 8  # of a shard
    x, weight = torch.randn(TOKENS, 16).bfloat16(), torch.randn(shards, 2, width, 16).bfloat16()
    deferred = gate_and_up(x, weight.flatten(0, 2), [width, width], shards)
    products = torch.einsum("tk,spnk->tpsn", x, weight).flatten(1)
    expected = ACTIVATIONS[activation](products).float()
    difference = (ACTIVATIONS[activation](deferred).float() - expected).norm()
    assert difference <= 1e-2 * expected.norm()


def test_only_two_of_one_width_are_gate_and_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "LEAST_COLUMNS", 1)
    x, weight = torch.randn(TOKENS, 16).bfloat16(), torch.randn(24, 16).bfloat16()
    assert gate_and_up(x, weight, [12, 12]) is not None
    assert gate_and_up(x, weight, [8, 16]) is gate_and_up(x, weight, [8, 8, 8]) is None
    assert gate_and_up(x.float(), weight.float(), [12, 12]) is None
    assert gate_and_up(x.repeat(4, 1), weight, [12, 12]) is None
