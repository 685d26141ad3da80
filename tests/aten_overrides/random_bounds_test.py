"""Random numbers at the ends of their distributions, where rounding decides."""

import pytest
import torch
import torch_xla

from aten_overrides import optimized  # noqa: F401


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_bounds(dtype: torch.dtype) -> None:
    x = torch.empty(1_000_000, dtype=dtype, device="xla")
    for low, high in ((0.0, 1.0), (-1.0, 0.0), (100.0, 102.0), (-3.0, -2.0)):
        numbers = x.uniform_(low, high).cpu()
        assert (numbers.min() >= low).item() and (numbers.max() < high).item()
    assert (x.exponential_().cpu() > 0).all()


def test_rare_tokens() -> None:
    """A fifth of all tokens are so rare that each is drawn once in a million times."""
    rare = torch.full((8, 200_001), 1e-6)
    rare[:, 0] = 0.8
    rare = rare.to("xla")
    times = torch.empty(8, 200_001, device="xla")
    torch_xla.manual_seed(0)
    count = 0
    for _ in range(16):
        count += (rare / times.exponential_()).argmax(-1).ne(0).sum().item()
    assert 0.12 < count / 128 < 0.28


@pytest.mark.parametrize(("dtype", "bits"), [(torch.uint16, 16), (torch.uint32, 32)], ids=str)
def test_unsigned_integers(dtype: torch.dtype, bits: int) -> None:
    """randint has all values of these dtypes, of which upstream's backend openxla2 draws its
    seeds."""
    x = torch.randint(0, 2**bits, (1000,), dtype=dtype, device="xla").cpu().long()
    assert 0 <= x.min() < 2**bits // 16
    assert 2**bits // 16 * 15 < x.max() < 2**bits
    with pytest.raises(RuntimeError, match="out of bounds for UInt"):
        torch.randint(0, 2**bits + 1, (2,), dtype=dtype, device="xla")
    with pytest.raises(RuntimeError, match="not implemented for 'UInt64' on XLA devices"):
        torch.randint(0, 2, (2,), dtype=torch.uint64, device="xla")
