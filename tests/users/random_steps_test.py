"""Random functions, captured and under torch.compile(backend="openxla"), called three times each.

They read and write the same tensors in each call. Results and tensors must be those of the CPU.

RANDOM_STEPS and RANDOM_SEED choose how many, and which.
"""

import pytest
import torch
import torch_xla
from testing import random_steps


@pytest.mark.parametrize("way, count", [("captured", 50), ("openxla", 20)])
def test_random_steps(way: str, count: int, device: torch.device) -> None:
    random_steps.check(way, count, device)


@pytest.mark.parametrize(
    "way, count", [("lazy", 30), ("captured", 50), ("captured with state", 75), ("openxla", 15)]
)
def test_random_steps_of_views(way: str, count: int, device: torch.device) -> None:
    random_steps.check(way, count, device, views=True)


@pytest.mark.parametrize("views", [False, True])
def test_random_steps_of_own_tensors(views: bool) -> None:
    """The tensors are PyTorch's own, in the memory of XLA's device (own_tensors_test.py)."""
    own = torch.device("cuda" if torch_xla.runtime.device_type() == "CUDA" else "cpu")
    if own.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a torch with CUDA")
    # fill_diagonal_() of a view, which PyTorch compiles for no backend.
    random_steps.check("openxla", 15, own, views=views, limit="as_strided_scatter: sizes")


@pytest.mark.parametrize(
    "way, count", [("lazy", 20), ("captured", 30), ("captured with state", 30), ("openxla", 15)]
)
def test_values_that_are_pending_while_their_tensors_are_written_to(
    way: str, count: int, device: torch.device
) -> None:
    random_steps.check(way, count, device, pending=True)
