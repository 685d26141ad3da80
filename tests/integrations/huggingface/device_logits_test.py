"""Logits that stay on the device for argmax behave like a tensor on the host."""

import copy
import pickle
from collections.abc import Callable
from unittest import mock

import pytest
import torch

from torch_xla_huggingface.device_logits import DeviceLogits
from torch_xla_huggingface.results import ResultMemory, Results


@pytest.fixture
def host() -> torch.Tensor:
    logits = torch.randn(3, 1, 50).bfloat16()
    logits[1, 0, 7] = logits[1, 0, 30] = 9  # the first of two counts
    return logits


@pytest.fixture
def lazily(host: torch.Tensor) -> DeviceLogits:
    on_device = host.to("xla")
    return DeviceLogits(on_device, on_device[:, -1].argmax(-1))


def float_row(logits: torch.Tensor) -> torch.Tensor:
    """The last position's logits in float32, as transformers' loop reads them."""
    return logits[:, -1, :].to(copy=True, dtype=torch.float32, device=torch.device("cpu"))


def test_argmax_copies_no_logits(host: torch.Tensor, lazily: DeviceLogits) -> None:
    with mock.patch.object(DeviceLogits, "on_host", side_effect=AssertionError):
        best = torch.argmax(float_row(lazily), dim=-1)
        assert lazily.detach().argmax(-1).shape == (3, 1)
    assert type(best) is torch.Tensor
    assert best.tolist() == torch.argmax(float_row(host), dim=-1).tolist()
    assert best[1] == 7


def written_before(logits: torch.Tensor) -> torch.Tensor:
    row = logits[:, -1, :]
    logits[:, :, 4] = 100.0
    return torch.cat([row.float().argmax(-1)[:, None], row[:, 4:6].long()], dim=-1)


def written_after(logits: torch.Tensor) -> torch.Tensor:
    scores = float_row(logits)
    logits.zero_()
    return scores


def written(logits: torch.Tensor) -> torch.Tensor:
    scores = float_row(logits)
    scores[:, scores.argmax(-1)] = -torch.inf
    return torch.cat([scores, scores.argmax(-1, keepdim=True)], dim=-1)


@pytest.mark.parametrize(
    "function",
    [
        float_row,
        written,
        written_after,
        written_before,
        lambda logits: logits.argmax(),
        lambda logits: logits.argmax(1),
        lambda logits: logits.argmax(-1, keepdim=True),
        lambda logits: logits[:, 0, 3:9].argmax(-1),
        lambda logits: logits[1:].argmax(-1),
        lambda logits: logits[..., ::2].argmax(-1),
        lambda logits: logits.half().float(),
        lambda logits: logits.double().argmax(-1),
        lambda logits: logits.float().to("cpu").to("xla").cpu(),
        lambda logits: float_row(logits).softmax(-1),
        lambda logits: float_row(logits).topk(3).indices,
        lambda logits: torch.where(float_row(logits) > 0, 1, 2),
        lambda logits: torch.tensor(logits.float().tolist()),
        lambda logits: torch.from_numpy(float_row(logits).numpy()),
        lambda logits: torch.tensor([logits[1, 0, 7].item()]),
        lambda logits: copy.deepcopy(logits).float(),
        lambda logits: pickle.loads(pickle.dumps(logits)).float(),
        lambda logits: logits.new_zeros(2),
    ],
)
def test_everything_else(
    host: torch.Tensor, lazily: DeviceLogits, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    expected, got = function(host), function(lazily)
    if isinstance(got, DeviceLogits):
        got = got + 0
    assert type(got) is torch.Tensor
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_results_that_are_used_are_not_written_to(host: torch.Tensor) -> None:
    on_device = host.to("xla")
    results = Results(on_device, on_device[:, -1].argmax(-1), torch.zeros(3, 1).to("xla"))
    memory = ResultMemory(results)
    row = float_row(DeviceLogits(results.logits, results.best, owner=results))
    del results
    other = memory.take()
    other.logits.zero_()
    assert torch.equal(row, float_row(host))
    del row
    assert memory.take().logits is on_device
    assert pickle.loads(pickle.dumps(memory)).take().logits.shape == host.shape
