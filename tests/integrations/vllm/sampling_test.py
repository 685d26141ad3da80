"""The random numbers of the sampler."""

import numpy as np
import pytest
import torch
import torch_xla
from vllm_xla_gpu.sampling import KeyedSampler, SamplingMetadata, exponential, make_key

ROWS = 4000


def _keys(seed: int) -> torch.Tensor:
    keys = np.stack([make_key(seed, place) for place in range(ROWS)])
    return torch.from_numpy(keys.astype(np.int64))


def test_exponential() -> None:
    numbers = exponential(_keys(0), 100)
    assert numbers.min() > 0
    assert numbers.mean() == pytest.approx(1, abs=0.01)
    assert numbers.var() == pytest.approx(1, abs=0.03)
    uniform = (-numbers.double()).exp()
    counts = uniform.flatten().histc(50, 0, 1)
    chi_square = ((counts - ROWS * 2) ** 2 / (ROWS * 2)).sum()
    assert chi_square < 90  # of 49 degrees of freedom: 1 in 3,000
    # Neither rows, nor places in a row, nor seeds depend on each other.
    for other in (numbers.roll(1, 0), numbers.roll(1, 1), exponential(_keys(1), 100)):
        pairs = torch.stack([numbers.flatten(), other.flatten()])
        assert abs(torch.corrcoef(pairs)[0, 1]) < 0.007
    on_device = exponential(_keys(0).to("xla"), 100).cpu()
    torch.testing.assert_close(on_device, numbers, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.3, 0.15, 0.05]),
        ({"top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.9}, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
    ],
    ids=str,
)
def test_frequencies(options: dict[str, float], expected: list[float]) -> None:
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    device = torch_xla.device()
    metadata = SamplingMetadata(
        temperature=torch.ones(ROWS).to(device),
        min_p=torch.zeros(ROWS).to(device),
        top_k=torch.full((ROWS,), options.get("top_k", 4), dtype=torch.int32).to(device),
        top_p=torch.full((ROWS,), options.get("top_p", 1.0)).to(device),
        all_greedy=False,
        keys=_keys(2).to(device),
    )
    logits = probs.log().expand(ROWS, 4).clone().to(device)
    tokens = KeyedSampler()(logits, metadata).sampled_token_ids.cpu()
    assert tokens.shape == (ROWS, 1)
    found = tokens.flatten().bincount(minlength=4) / ROWS
    # Three standard deviations of the most uncertain frequency.
    assert (found - torch.tensor(expected)).abs().max() < 3 * 0.5 / ROWS**0.5
    assert not found[torch.tensor(expected) == 0].any()
