"""torch_xla.utils.dlpack: memory that other libraries and XLA tensors share."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from testing.xla import PLATFORM
from torch_xla.utils.dlpack import from_dlpack, to_dlpack

NUMBERS = torch.arange(24.0)
pytestmark = pytest.mark.skipif(PLATFORM == "CUDA", reason="the memory is the CPU's")


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.view(4, 6).t(),
        lambda x: x.view(2, 3, 4).permute(2, 0, 1),
        lambda x: x.view(4, 6)[:, ::2],
        lambda x: x[1:],
        lambda x: x.view(4, 6)[1:, 1:],
        lambda x: x[:3].expand(2, 3),
        lambda x: x.view(4, 6).half().t(),
        lambda x: x[:0].view(3, 0),
        lambda x: x[5],
    ],
)
def test_from_memory_of_any_strides(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    source = make(NUMBERS.clone())
    for given in (source, torch.utils.dlpack.to_dlpack(source), source.numpy()):
        found = from_dlpack(given)
        assert found.dtype == source.dtype
        assert torch.equal(found.cpu(), source) and torch.equal((found + 1).cpu(), source + 1)


def test_from_memory_of_numpy() -> None:
    for start in range(5):  # at most one of them is aligned
        assert from_dlpack(np.arange(8.0)[start:]).tolist() == list(range(start, 8))


def test_the_source_lives_as_long_as_the_tensor() -> None:
    tensors = [from_dlpack(torch.full((100, 100), float(i)).t()[1:]) for i in range(20)]
    assert [tensor.mean().item() for tensor in tensors] == list(range(20))


def test_to_memory_of_a_pending_tensor() -> None:
    x = NUMBERS.view(4, 6).to("xla")
    for tensor in (x, x + 1, x.t(), x[1:, 2:], (x * 2).detach(), torch.randn(3, 3, device="xla")):
        found = torch.utils.dlpack.from_dlpack(to_dlpack(tensor))
        assert torch.equal(found, tensor.cpu())
    big = torch.ones(500, 500, device="xla")
    for _ in range(4):
        big = big @ big / 500
    assert torch.utils.dlpack.from_dlpack(to_dlpack(big)).eq(1).all()


def test_to_memory_refuses_tensors_of_other_devices() -> None:
    with pytest.raises(ValueError, match=r"expected an XLA tensor but got one on cpu"):
        to_dlpack(NUMBERS)
