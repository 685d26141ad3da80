"""vmap passes operands that broadcast to operators that get equal sizes from all other code.

https://github.com/pytorch/functorch/issues/823
"""

from collections.abc import Callable

import pytest
import torch
from torch.func import grad, hessian, vmap
from torch.nn import functional as F  # noqa: N812

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

ACTIVATIONS = [
    "elu",
    "gelu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "logsigmoid",
    "mish",
    "relu",
    "silu",
    "softplus",
    "softshrink",
    "tanhshrink",
]
LOSSES: dict[str, Loss] = {
    **{name: lambda x, w, name=name: (getattr(F, name)(x) * w).sum() for name in ACTIVATIONS},
    "prelu": lambda x, w: F.prelu(x, w[0]).square().sum(),
    "prelu_of_one_weight": lambda x, w: F.prelu(x, w[0, :1]).sum(),
    "sigmoid": lambda x, w: (x.sigmoid() * w).sum(),
    "tanh": lambda x, w: (x.tanh() * w).sum(),
    "binary_cross_entropy": lambda x, w: F.binary_cross_entropy(x.sigmoid(), w.sigmoid()),
    "with_logits": lambda x, w: F.binary_cross_entropy_with_logits(x, w.sigmoid()),
    "with_weights": lambda x, w: F.binary_cross_entropy_with_logits(
        x, x.sigmoid().detach(), pos_weight=w[0].abs()
    ),
    # Upstream's functions refuse torch.func: autograd functions in C++.
    "max_pool2d": lambda x, w: (F.max_pool2d(x[None], 2) * w[:2, :1]).sum(),
    "max_pool3d": lambda x, w: (F.max_pool3d(x[None, None].repeat(1, 2, 1, 1), 2) * w[0, 0]).sum(),
    "einsum": lambda x, w: torch.einsum("ij,kj->ik", x, w).square().sum(),
}
WAYS: dict[str, Callable[[Loss], Callable]] = {
    "each": lambda loss: vmap(grad(loss, (0, 1))),
    "each_input": lambda loss: vmap(grad(loss, (0, 1)), (0, None)),
    "each_weight": lambda loss: vmap(grad(loss, (0, 1)), (None, 0)),
    "hessian": hessian,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LOSSES)
def test_transforms(name: str, way: str) -> None:
    if (name, way) == ("hardsigmoid", "hessian"):
        pytest.skip("PyTorch does not support it")
    torch.manual_seed(0)
    is_batched = way != "hessian"
    inputs = torch.randn(3, 4, 3) if is_batched and way != "each_weight" else torch.randn(4, 3)
    weights = torch.randn(3, 4, 3) if is_batched and way != "each_input" else torch.randn(4, 3)
    run = WAYS[way](LOSSES[name])
    expected = run(inputs, weights)
    found = run(inputs.to("xla"), weights.to("xla"))
    torch.testing.assert_close(
        torch.utils._pytree.tree_map(torch.Tensor.cpu, found), expected, rtol=1e-4, atol=1e-5
    )
