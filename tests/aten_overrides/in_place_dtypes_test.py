"""Dtypes that PyTorch refuses are refused, by in-place operators and by others."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import torch_xla  # noqa: F401

aten = torch.ops.aten
Call = Callable[[str], object]


def ones(device: str, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.ones(4, dtype=dtype, device=device)


REFUSED: dict[str, Call] = {
    # C++ functions call these overloads; Python calls the overloads for tensors.
    "div_ by a number": lambda d: aten.div_.Scalar(ones(d), 0.7),
    "mul_ by a number": lambda d: aten.mul_.Scalar(ones(d), 0.7),
    "mul_ of booleans": lambda d: aten.mul_.Scalar(ones(d, torch.bool), 2),
    "polygamma_": lambda d: ones(d).polygamma_(1),
    "cumsum_ of booleans": lambda d: ones(d, torch.bool).cumsum_(0),
    "cumprod_ of booleans": lambda d: ones(d, torch.bool).cumprod_(0),
    "lerp_ of integers": lambda d: ones(d).lerp_(ones(d), 0.5),
    "lerp of integers": lambda d: torch.lerp(ones(d), ones(d), ones(d)),
    "floor_divide of booleans": lambda d: ones(d, torch.bool) // ones(d, torch.bool),
    "bitwise_and_ of halves": lambda d: ones(d, torch.half).bitwise_and_(ones(d)),
    "bitwise_xor of two dtypes": lambda d: torch.bitwise_xor(ones(d), ones(d, torch.double)),
    "put_": lambda d: ones(d).put_(ones(d), ones(d, torch.float)),
    "dropout of integers": lambda d: F.dropout(ones(d), 0.3),
    "dropout of booleans": lambda d: F.dropout(ones(d, torch.bool), 0.3),
    "native_dropout of integers": lambda d: torch.native_dropout(ones(d), 0.3, True),
    "randn_like of integers": lambda d: torch.randn_like(ones(d)),
    "normal of integers": lambda d: torch.normal(ones(d), 2.0),
    "normal of complex deviations": lambda d: torch.normal(0.0, ones(d, torch.cfloat)),
    "bernoulli_ of complex numbers": lambda d: ones(d, torch.cfloat).bernoulli_(0.5),
    "masked_fill with a complex number": lambda d: ones(d).masked_fill(
        ones(d, torch.bool), torch.tensor(1j, device=d)
    ),
    "binary_cross_entropy": lambda d: F.binary_cross_entropy(
        ones(d, torch.float), ones(d, torch.double)
    ),
    "gradient of binary_cross_entropy": lambda d: aten.binary_cross_entropy_backward(
        ones(d, torch.float)[0], ones(d, torch.float), ones(d, torch.int)
    ),
    "logits and classes": lambda d: F.binary_cross_entropy_with_logits(
        ones(d, torch.float), ones(d)
    ),
    "logits and booleans": lambda d: F.binary_cross_entropy_with_logits(
        ones(d, torch.float), ones(d, torch.bool)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    texts = []
    for device in ("cpu", "xla"):
        with pytest.raises((RuntimeError, NotImplementedError)) as raised:
            REFUSED[name](device)
        texts.append(str(raised.value))
    assert "\n" not in texts[1]
    if texts[0].startswith(("result type", "Found dtype", "put_")):
        assert texts[1] == texts[0]
    elif not texts[1].startswith(("value cannot be converted to type", "Subtraction, the `-`")):
        assert "normal" in texts[1] or "not implemented for" in texts[1]


def written(tensor: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    tensor[key] = value
    return tensor


COMPUTED: dict[str, Call] = {
    "masked_fill with a complex number": lambda d: ones(d).masked_fill(
        ones(d, torch.bool), torch.tensor(3 + 0j, device=d)
    ),
    "masked_fill_ with a complex number": lambda d: ones(d, torch.half).masked_fill_(
        ones(d, torch.bool), torch.tensor(3 + 0j, device=d)
    ),
    "masked_fill of booleans with a complex number": lambda d: (ones(d) > 1).masked_fill(
        ones(d, torch.bool), torch.tensor(1j, device=d)
    ),
    "x[mask] = an integer": lambda d: written(
        ones(d, torch.float), ones(d, torch.bool), torch.tensor(3, device=d)
    ),
    "x[mask] = a double": lambda d: written(
        ones(d), ones(d, torch.bool), torch.tensor([3.0], dtype=torch.double, device=d)
    ),
    "x[mask] = a complex number": lambda d: written(
        ones(d), ones(d, torch.bool), torch.tensor(3 + 0j, device=d)
    ),
    "group_norm of halves": lambda d: F.group_norm(
        torch.arange(12.0, device=d).view(1, 4, 3).half(),
        2,
        ones(d, torch.float) / 3,
        ones(d, torch.float) / 7,
    ),
    "linear of a view with another bias": lambda d: F.linear(
        torch.ones(2, 2, 6, device=d)[..., ::2],
        torch.ones(4, 3, device=d),
        ones(d, torch.double) / 3,
    ),
    "mul_ by an integer": lambda d: aten.mul_.Scalar(ones(d), 3),
    "div_ of floats": lambda d: aten.div_.Scalar(ones(d, torch.float), 2),
    "cumsum_": lambda d: ones(d).cumsum_(0),
    "dropout that is off": lambda d: F.dropout(ones(d), 0.3, training=False),
    "binary_cross_entropy with a weight": lambda d: F.binary_cross_entropy(
        ones(d, torch.float) * 0.3, ones(d, torch.float), weight=ones(d, torch.double) * 3
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_computed(name: str) -> None:
    torch.testing.assert_close(COMPUTED[name]("xla").cpu(), COMPUTED[name]("cpu"))
