"""Models in torch.inference_mode()."""

from collections.abc import Callable

import pytest
import torch
import torch_xla

TRANSFORMS = {
    "lazy": lambda function: function,
    "compiled": lambda function: torch.compile(function, backend="openxla"),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_model(name: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 8)
    reference = model(x)
    function = TRANSFORMS[name](model.to("xla"))
    for _ in range(2):
        with torch.inference_mode():
            result = function(x.to("xla"))
        assert not result.requires_grad
        assert torch.allclose(result.cpu(), reference, atol=1e-5)


@torch.inference_mode()
def write(cache: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    cache[1] = values
    cache[:, 0].add_(1)
    return cache.view(-1)


def test_views_of_a_cache() -> None:
    cache = torch.zeros(3, 2)
    on_xla = cache.to("xla")
    for step in range(2):
        values = torch.full((2,), float(step))
        assert torch.equal(write(on_xla, values.to("xla")).cpu(), write(cache, values))
        torch_xla.sync()
    assert torch.equal(on_xla.cpu(), cache)


def gradients() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize("outer", [torch.no_grad, torch.enable_grad])
def test_modes_that_it_changes(is_enabled: bool, outer: Callable) -> None:
    with outer():
        before = gradients()
        with torch.inference_mode(is_enabled):
            assert gradients() == (not is_enabled, not is_enabled)
            with torch.inference_mode(not is_enabled):
                assert gradients() == (is_enabled, is_enabled)
            assert gradients() == (not is_enabled, not is_enabled)
        assert gradients() == before
        with pytest.raises(KeyError), torch.inference_mode(is_enabled):
            raise KeyError
        assert gradients() == before


def test_tensors_from_inside_train() -> None:
    with torch.inference_mode():
        x = torch.ones(3, device="xla") * 2
    weight = torch.ones(3, device="xla", requires_grad=True)
    (weight * x).sum().backward()
    assert weight.grad.tolist() == [2, 2, 2]
