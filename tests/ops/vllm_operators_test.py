"""bgmv and kv_cache_update_op, as vllm-tpu calls them, against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch_xla
import torch_xla.experimental.custom_kernel as custom_kernel
from torch.library import impl

ON_DEVICES = pytest.mark.parametrize("device", ["cpu", "xla"])
TOKENS, HEADS, HEAD_DIM, PAGE_SIZE, PAGES = 24, 4, 16, 8, 6


def reference_bgmv(inputs: torch.Tensor, loras: torch.Tensor, idxs: list[int]) -> torch.Tensor:
    rows = [
        loras[i] @ row if 0 <= i < loras.shape[0] else torch.zeros(loras.shape[1])
        for row, i in zip(inputs, idxs, strict=True)
    ]
    return torch.stack(rows)


@ON_DEVICES
@pytest.mark.parametrize(("rank", "features"), [(4, 32), (32, 4), (8, 8)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("idxs", [[0, 2, 1, -1, 2, 0, 3], [-1] * 7, [1] * 7], ids=str)
def test_bgmv(device: str, rank: int, features: int, dtype: torch.dtype, idxs: list[int]) -> None:
    torch.manual_seed(4)
    inputs, loras = torch.randn(7, features).to(dtype), torch.randn(3, rank, features).to(dtype)
    expected = reference_bgmv(inputs.float(), loras.float(), idxs)
    for matrices in (loras, loras[:, None]):  # vLLM's have a dimension of 1
        operands = inputs, matrices, torch.tensor(idxs, dtype=torch.int32)
        result = torch.ops.xla.bgmv(*(t.to(device) for t in operands))
        assert result.dtype == dtype
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
        torch.testing.assert_close(result.cpu(), expected.to(dtype), **tolerance)


@ON_DEVICES
def test_an_infinity_of_another_adapter(device: str) -> None:
    inputs = torch.ones(2, 8)
    inputs[1] = torch.inf
    loras = torch.ones(2, 3, 8)
    result = torch.ops.xla.bgmv(*(t.to(device) for t in (inputs, loras, torch.tensor([0, -1]))))
    assert result.tolist() == [[8, 8, 8], [0, 0, 0]]


@ON_DEVICES
def test_gradients_of_bgmv(device: str) -> None:
    torch.manual_seed(5)
    on_host = [torch.randn(5, 12), torch.randn(2, 3, 12)]
    grads = []
    for where in ("cpu", device):
        inputs, loras = (t.to(where).detach().requires_grad_() for t in on_host)
        idxs = torch.tensor([0, 1, -1, 1, 0]).to(where)
        torch.ops.xla.bgmv(inputs, loras, idxs).square().sum().backward()
        grads.append([inputs.grad.cpu(), loras.grad.cpu()])
    torch.testing.assert_close(*grads)
    assert not grads[0][0][2].any()


def slices(*triples: tuple[int, int, int], padding: int = 0) -> torch.Tensor:
    """Of first row, first token and count; the padding would write everywhere."""
    return torch.tensor([*triples, *[(1, 0, PAGE_SIZE)] * padding], dtype=torch.int32).t()


CASES = {
    "decode": ((9, 0, 1), (30, 1, 1), (0, 2, 1)),
    "prompt": ((8, 0, 8), (40, 8, 8), (16, 16, 3)),
    "mixed": ((13, 0, 3), (47, 3, 1), (20, 4, 2)),
    "other order": ((40, 20, 4), (0, 0, 8)),
    "nothing": (),
    "empty slice": ((5, 0, 0), (7, 0, 2)),
}


@ON_DEVICES
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_kv_cache_update(device: str, case: str, dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    kv = torch.randn(TOKENS, HEADS, HEAD_DIM).to(dtype)
    cache = torch.randn(PAGES * PAGE_SIZE, HEADS, HEAD_DIM).to(dtype)
    expected = cache.float()
    for row, token, count in CASES[case]:
        expected[row : row + count] = kv[token : token + count].float()
    mapping = slices(*CASES[case], padding=3)
    count = torch.tensor([len(CASES[case])], dtype=torch.int32)
    operands = [t.to(device) for t in (kv, mapping, cache, count)]
    result = torch.ops.xla.kv_cache_update_op(*operands, PAGE_SIZE, 8)
    assert result.dtype == dtype
    assert torch.equal(result.cpu().float(), expected)
    assert torch.equal(operands[2].cpu().float(), cache.float())  # as it was


def test_kv_cache_update_under_openxla_and_in_place() -> None:
    """What vLLM's attention does with it."""
    torch.manual_seed(7)

    def write(
        kv: torch.Tensor, mapping: torch.Tensor, pages: torch.Tensor, n: torch.Tensor
    ) -> None:
        cache = pages.flatten(0, 1)
        cache.copy_(torch.ops.xla.kv_cache_update_op(kv, mapping, cache, n, PAGE_SIZE, 8))

    compiled = torch.compile(write, backend="openxla")
    pages = torch.zeros(PAGES, PAGE_SIZE, HEADS, HEAD_DIM, device="xla")
    expected = torch.zeros(PAGES * PAGE_SIZE, HEADS, HEAD_DIM)
    for row in (3, 17, 4):
        kv = torch.randn(5, HEADS, HEAD_DIM)
        expected[row : row + 5] = kv
        operands = kv, slices((row, 0, 5), padding=1)
        n = torch.tensor([1], dtype=torch.int32).to("xla")
        compiled(*(t.to("xla") for t in operands), pages, n)
        assert torch.equal(pages.cpu().flatten(0, 1), expected)


def test_wrong_operands() -> None:
    kv, cache = torch.zeros(4, 2, 16), torch.zeros(16, 2, 16)
    n = torch.tensor([1], dtype=torch.int32)
    for wrong in (kv[:, :1], kv.half(), kv[0]):
        with pytest.raises(ValueError, match="kv_cache_update_op: expected kv"):
            torch.ops.xla.kv_cache_update_op(wrong, slices((0, 0, 1)), cache, n, 8, 8)
    with pytest.raises(ValueError, match="bgmv: expected inputs"):
        torch.ops.xla.bgmv(kv[0], torch.zeros(2, 3, 8), n)


def test_vllm_defines_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its modules do, in these words; theirs remain for TPUs."""
    library = custom_kernel.XLA_LIB
    library.define("bgmv(Tensor inputs, Tensor loras, Tensor idxs) -> Tensor")

    @impl(library, "bgmv", "XLA")
    def bgmv_xla(inputs: torch.Tensor, loras: torch.Tensor, idxs: torch.Tensor) -> torch.Tensor:
        return inputs + 41

    @impl(library, "bgmv", "CompositeExplicitAutograd")
    def bgmv_non_xla(inputs: torch.Tensor, loras: torch.Tensor, idxs: torch.Tensor) -> torch.Tensor:
        return torch.empty(inputs.shape[0], loras.shape[1])

    operands = torch.ones(1, 2), torch.ones(1, 2, 2), torch.tensor([0])
    for device in ("cpu", "xla"):
        result = torch.ops.xla.bgmv(*(t.to(device) for t in operands))
        assert result.tolist() == [[2, 2]]
    monkeypatch.setattr(torch_xla.runtime, "device_type", lambda: "TPU")
    assert torch.ops.xla.bgmv(*(t.to("xla") for t in operands)).tolist() == [[42, 42]]
