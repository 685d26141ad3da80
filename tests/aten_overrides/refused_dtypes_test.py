"""Dtypes for which PyTorch does not implement an operator: an error at the call."""

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

OF_FEW_DTYPES: dict[str, Callable[[torch.Tensor], object]] = {
    "hardtanh": lambda x: F.hardtanh(x, -1, 1),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "max_pool3d": lambda x: F.max_pool3d(x[None], 2),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "conv2d": lambda x: F.conv2d(x, x[:, :, :2, :2]),
    "reflection_pad": lambda x: F.pad(x, (1, 1), mode="reflect"),
    "bilinear": lambda x: F.interpolate(x, size=(3, 3), mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, size=(3, 3)),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "huber_loss": lambda x: F.huber_loss(x, x),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "std": lambda x: x.std(),
    "var_mean": lambda x: torch.var_mean(x),
    "dist": lambda x: torch.dist(x, x),
    "svdvals": lambda x: torch.linalg.svdvals(x),
    "cholesky": lambda x: torch.cholesky(x),
    "inv": lambda x: torch.linalg.inv(x),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(x),
    "triangular_solve": lambda x: torch.triangular_solve(x, x)[0],
    "cdist": lambda x: torch.cdist(x, x),
    "pdist": lambda x: torch.pdist(x[0, 0]),
    "max_pool1d": lambda x: F.max_pool1d(x[0], 2),
    "unfold": lambda x: F.unfold(x, 2),
    "fold": lambda x: F.fold(x[0], (2, 2), 1),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x[0], 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "replicate": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "nearest of a row": lambda x: F.interpolate(x[0], size=3),
    "nearest of a volume": lambda x: F.interpolate(x[None], size=(3, 3, 3)),
    "nearest-exact": lambda x: F.interpolate(x, size=(3, 3), mode="nearest-exact"),
    "bicubic": lambda x: F.interpolate(x, size=(3, 3), mode="bicubic"),
    "trilinear": lambda x: F.interpolate(x[None], size=(3, 3, 3), mode="trilinear"),
    "area": lambda x: F.interpolate(x, size=(3, 3), mode="area"),
    "grid_sample": lambda x: F.grid_sample(x, x[:, 0, :, :2, None].mT, align_corners=False),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x[0, 0], x.new_zeros(4, dtype=int)),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(
        x[0, 0], x.new_zeros(4, 4, dtype=int)
    ),
    "softmax's gradient": lambda x: torch.ops.aten._softmax_backward_data(x, x, 0, torch.float32),
    "log_softmax's gradient": lambda x: torch.ops.aten._log_softmax_backward_data(
        x, x, 0, torch.float32
    ),
    "div with floor": lambda x: torch.div(x, torch.ones_like(x), rounding_mode="floor"),
    "div with trunc": lambda x: torch.div(x, torch.ones_like(x), rounding_mode="trunc"),
    "mvlgamma": lambda x: torch.mvlgamma(x + x + x + x + x, 1),
    "addr": lambda x: torch.addr(x[0, 0], x[0, 0, 0], x[0, 0, 0], beta=0.5),
    "scatter_reduce": lambda x: x.scatter_reduce(0, x.new_zeros(x.shape, dtype=int), x, "amax"),
    "random_": lambda x: torch.randint_like(x, 10),
    "trace": lambda x: x[0, 0].trace(),
} | {
    name: getattr(F, name)
    for name in (
        *("celu", "elu", "gelu", "glu", "hardshrink", "hardsigmoid", "hardswish", "leaky_relu"),
        *("logsigmoid", "mish", "relu6", "softplus", "softshrink"),
    )
}
OF_FEW_DTYPES |= {
    name: getattr(torch, name)
    for name in (
        *("bernoulli", "erf", "erfc", "frac", "logit", "round", "argmax", "amax", "abs"),
        *("nansum", "nanmean"),
    )
}


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("name", OF_FEW_DTYPES)
def test_a_dtype_that_pytorch_refuses(name: str, dtype: torch.dtype) -> None:
    """XLA itself crashes the process for some dtypes, and fails when it compiles others."""
    x = torch.eye(4)[None, None].to(dtype)
    try:
        OF_FEW_DTYPES[name](x)
    except (RuntimeError, NotImplementedError):
        with pytest.raises((RuntimeError, NotImplementedError)) as caught:
            OF_FEW_DTYPES[name](x.to("xla"))
        assert not re.search("Check failed|Error while lowering|Non-OK", str(caught.value))
    else:
        OF_FEW_DTYPES[name](x.to("xla"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "name", ["cdist", "cholesky", "eigvalsh", "inv", "pdist", "svdvals", "triangular_solve"]
)
def test_matrices_of_16_bits(name: str, dtype: torch.dtype) -> None:
    test_a_dtype_that_pytorch_refuses(name, dtype)


def test_complex_numbers_of_16_bits() -> None:
    x = torch.ones(2, 2, device="xla", dtype=torch.float16)
    for call in (torch.view_as_complex, torch.view_as_complex_copy):
        with pytest.raises(NotImplementedError, match="convert the tensor to float32"):
            call(x)
