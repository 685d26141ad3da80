"""simple_add on torch's own CUDA tensors: the kernel without XLA, on torch's current stream.

Needs a torch with CUDA and a GPU; torch_xla's platform does not matter.
"""

import pytest
import torch
from testing.simple_add import DTYPES, random

from torch_xla_ext import ops

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a torch with CUDA and a GPU"
)


@pytest.mark.parametrize("size", [0, 1, 257, (1 << 20) + 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sum_is_torchs_bit_for_bit(dtype: torch.dtype, size: int) -> None:
    a, b = (random(dtype, size).cuda() for _ in range(2))
    assert torch.equal(ops.simple_add(a, b), a + b)


def test_views() -> None:
    a, b = torch.randn(16, 24, device="cuda"), torch.randn(16, 24, device="cuda")
    for view in (lambda x: x.t(), lambda x: x[1:, 2:5], lambda x: x.reshape(-1)[1:]):
        assert torch.equal(ops.simple_add(view(a), view(b)), view(a) + view(b))


def test_current_stream() -> None:
    """The kernel waits for earlier work on the stream; the host does not wait."""
    stream = torch.cuda.Stream()
    a = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        a.fill_(1)
        total = ops.simple_add(a, a)
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(total, torch.full_like(a, 2))


def test_cuda_graph() -> None:
    a = torch.ones(1000, device="cuda")
    ops.simple_add(a, a)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = ops.simple_add(a, a)
    a.fill_(3)
    graph.replay()
    assert torch.equal(total, torch.full_like(a, 6))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_second_device() -> None:
    a = torch.ones(10, device="cuda:1")
    total = ops.simple_add(a, a)
    assert total.device == a.device
    assert torch.equal(total, a + a)
