"""Nodes whose upstream hash omits an attribute that the lowering uses (interpose/node_hash.cc).

Two programs that differ only in the attribute run one after the other. Their hashes differ, and
each gives its own shape and numbers.
"""

from collections.abc import Callable

import pytest
import torch

# Imported for torch.ops.quantized_decomposed, which torch_xla's quantization takes.
import torch.ao.quantization.fx._decomposed
import torch_xla
from torch.nn import functional as F  # noqa: N812
from torch_xla.core import xla_model

Function = Callable[..., torch.Tensor]

X = torch.arange(-8.0, 8).reshape(4, 4) / 4
SQUARE = torch.arange(256.0).reshape(1, 16, 4, 4)
INDEX = torch.tensor([2, 0, 1, 3])


def scaled(x: Function, factor: float, interval: int) -> torch.Tensor:
    scale, steps, found = torch.ones(1), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    return torch._amp_update_scale_(x(scale), x(steps), x(found), factor, 0.5, interval)


# By name: a function, and two values of the attribute. Results are compared with the CPU's.
CASES: dict[str, tuple[Function, tuple[object, object]]] = {
    "elu_backward, alpha": (
        lambda x, alpha: torch.ops.aten.elu_backward(
            x(X.abs()), alpha, 1.0, 1.0, True, x(X.abs() - 0.25)
        ),
        (0.5, 2.0),
    ),
    "pixel_shuffle, upscale_factor": (lambda x, f: F.pixel_shuffle(x(SQUARE), f), (4, 2)),
    "index_add, dim": (lambda x, dim: x(X).index_add(dim, x(INDEX), x(X)), (0, 1)),
    "index_copy, dim": (lambda x, dim: x(X).index_copy(dim, x(INDEX), x(2 * X)), (0, 1)),
    "avg_pool1d, divisor_override": (
        lambda x, divisor: F.avg_pool2d(x(SQUARE), 2, divisor_override=divisor),
        (None, 3),
    ),
    "avg_pool3d, divisor_override": (
        lambda x, divisor: F.avg_pool3d(x(SQUARE), 2, divisor_override=divisor),
        (2, 3),
    ),
    "cat, dtype": (
        # Only the dtype of an empty operand matters.
        lambda x, dtype: torch.cat([x(X[0]), x(torch.empty(0, dtype=dtype))]),
        (torch.float32, torch.float64),
    ),
    "_amp_update_scale_, growth_factor": (lambda x, factor: scaled(x, factor, 1), (2.0, 4.0)),
    "_amp_update_scale_, growth_interval": (lambda x, count: scaled(x, 2.0, count), (1, 2)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["forward", "reverse"])
def test_attributes_are_in_the_hash(
    name: str, order: tuple[int, int], device: torch.device
) -> None:
    function, attributes = CASES[name]
    hashes = set()
    for i in order:
        result = function(lambda tensor: tensor.clone().to(device), attributes[i])
        expected = function(torch.clone, attributes[i])
        hashes.add(torch_xla._XLAC._get_graph_hash([result]))
        assert result.shape == expected.shape
        torch.testing.assert_close(result.cpu(), expected)
    assert len(hashes) == 2


def test_quantization_axis(device: torch.device) -> None:
    x = (X * 4).to(device)
    scale, zero_point = torch.tensor([1.0, 2, 4, 8]), torch.zeros(4, dtype=torch.int64)
    hashes = []
    for axis in (0, 1):
        result = torch.ops.quantized_decomposed.quantize_per_channel(
            x, scale, zero_point, axis, -128, 127, torch.int8
        )
        hashes.append(torch_xla._XLAC._get_graph_hash([result]))
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    "fill",
    [lambda x: x.exponential_(), lambda x: x.bernoulli_(torch.tensor(0.5, device=x.device))],
    ids=["exponential_", "bernoulli_"],
)
def test_shape_of_random_numbers(fill: Function, device: torch.device) -> None:
    hashes = set()
    for shape in ((2, 3), (3, 2), (3, 4)):
        xla_model.set_rng_state(0)
        hashes.add(torch_xla._XLAC._get_graph_hash([fill(torch.empty(shape, device=device))]))
    assert len(hashes) == 3
