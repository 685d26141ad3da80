"""Calls that PyTorch refuses by sizes that another operator's check does not see.

Tensors without elements or dimensions are among them: a sweep of PyTorch's samples found those.
"""

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import torch_xla  # noqa: F401

aten = torch.ops.aten


def calls(device: str) -> dict[str, Callable[[], object]]:
    def o(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device=device)

    def i(*values: int) -> torch.Tensor:
        return torch.tensor(values, device=device, dtype=torch.int64)

    bits = o(2) > 0
    last = torch.channels_last
    return {
        "logical_and": lambda: torch.logical_and(o(2), o(3)),
        "floor_divide": lambda: torch.floor_divide(o(2), o(3)),
        "shift": lambda: i(1, 2) << i(1, 2, 3),
        "masked_fill": lambda: o(3).masked_fill(bits, 1.0),
        "masked_fill with a tensor": lambda: o(3).masked_fill(bits, o()),
        "where": lambda: torch.where(bits, o(2), o(3)),
        "huber_loss": lambda: F.huber_loss(o(2), o(3)),
        "logits": lambda: F.binary_cross_entropy_with_logits(o(2), o(2), o(3)),
        "logits with pos_weight": lambda: F.binary_cross_entropy_with_logits(
            o(2), o(2), pos_weight=o(3)
        ),
        "soft_margin_loss": lambda: F.soft_margin_loss(o(1), o(2)),
        "expand": lambda: o(2, 3).expand(4, 3),
        "expand_copy": lambda: torch.expand_copy(o(2), (3,)),
        "expand of nothing": lambda: o(0, 1).expand(5, 5),
        "addmm": lambda: torch.addmm(o(3), o(2, 3), o(3, 4)),
        "baddbmm": lambda: torch.baddbmm(o(3), o(2, 2, 3), o(2, 3, 4)),
        "addr": lambda: torch.addr(o(5, 1), o(2), o(3)),
        "linear": lambda: F.linear(o(2, 3), o(4, 3), o(3)),
        "addcdiv": lambda: torch.addcdiv(o(2), o(2), o(3)),
        "stack": lambda: torch.stack([o(2), o(3)]),
        "stack of a number": lambda: torch.stack([o(2), o(), o(2)], -1),
        "permute_copy": lambda: torch.permute_copy(o(2), ()),
        "pad": lambda: F.pad(o(2), (1, 1, 1, 1)),
        "pad of a number": lambda: torch.constant_pad_nd(o(), (1, 1)),
        "replicate": lambda: F.pad(o(1, 0), (1, 1), mode="replicate"),
        "reflect": lambda: F.pad(o(0, 3), (1, 1), mode="reflect"),
        "nearest": lambda: F.interpolate(o(1, 1, 2, 0), size=(2, 2)),
        "bilinear": lambda: F.interpolate(o(1, 1, 2, 0), size=(2, 2), mode="bilinear"),
        "index_select": lambda: o(0, 2).index_select(0, i(0)),
        "gather": lambda: o(0, 2).gather(0, i(0)[None]),
        "index": lambda: o(0, 2)[i(0)],
        "index_copy": lambda: o(0).index_copy(0, i(0), o(1)),
        "index_fill": lambda: o(0).index_fill(0, i(0), 1.0),
        "index_fill with a vector": lambda: o(2).index_fill(0, i(0), o(1)),
        "index_add": lambda: o(2, 2).index_add(0, i(0), o(0, 2)),
        "index_add to nothing": lambda: o(0).index_add(0, i(0), o(1)),
        "too many indices": lambda: o(2).index_put((i(0), i(0)), o(1)),
        "values of a mask": lambda: o(2, 3).index_put((bits,), o(2)),
        "values of an empty mask": lambda: o(0, 5).index_put((o(0) > 0,), o(0)),
        "embedding": lambda: F.embedding(i(0), o(0, 3)),
        "take": lambda: o(0).take(i(0)),
        "put_": lambda: o(0).put_(i(0), o(1)),
        "select_scatter": lambda: o(2, 3).select_scatter(o(2), 0, 0),
        "select_scatter to nothing": lambda: o(0, 3).select_scatter(o(3), 0, 0),
        "slice_scatter": lambda: o(4).slice_scatter(o(3), 0, 0, 2),
        "diagonal_scatter": lambda: o(3, 3).diagonal_scatter(o(2)),
        "as_strided_scatter": lambda: o(4).as_strided_scatter(o(3), (2,), (1,)),
        "split_with_sizes_copy": lambda: torch.split_with_sizes_copy(o(4), [1, 2]),
        "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(o(1, 2, 0, 3), 2),
        "cholesky": lambda: torch.cholesky(o(2, 5)),
        "eigh": lambda: torch.linalg.eigh(o(0, 5)),
        "nll_loss": lambda: F.nll_loss(o(2, 3), i(1)[0]),
        "nll_loss of images": lambda: F.nll_loss(o(2, 3, 4, 4), i(1, 1)),
        "weights of classes": lambda: F.nll_loss(o(2, 3), i(0, 1), o(2)),
        "batch_norm": lambda: F.batch_norm(o(), o(), o()),
        "statistics": lambda: torch.native_batch_norm(
            o(2, 3), None, None, o(2), o(2), True, 0.1, 1e-5
        ),
        "kernel": lambda: F.conv1d(o(1, 3, 4), o(3, 3, 0), padding=1),
        "format of to": lambda: o(3).to(memory_format=last),
        "format of float": lambda: o(3).double().float(memory_format=last),
        "format of clone": lambda: o(3).clone(memory_format=last),
        "format of empty": lambda: torch.empty(3, device=device, memory_format=last),
        "format of empty_like": lambda: torch.empty_like(o(3), memory_format=last),
        "format of contiguous": lambda: o(3).t().contiguous(memory_format=last),
    }


# PyTorch's CPU reads memory that the tensors do not have.
UNCHECKED_BY_PYTORCH = {"nll_loss", "statistics", "batch_norm"}


@pytest.mark.parametrize("name", calls("cpu"))
def test_a_wrong_size(name: str) -> None:
    if name not in UNCHECKED_BY_PYTORCH:
        with pytest.raises((RuntimeError, IndexError, ValueError)):
            calls("cpu")[name]()
    with pytest.raises((RuntimeError, IndexError, ValueError)) as caught:
        calls("xla")[name]()
    text = str(caught.value)
    assert not re.search("Check failed|Non-OK|INVALID_ARGUMENT|Error while lowering|ASSERT", text)
    assert "\n" not in text


ACCEPTED: dict[str, Callable[[str], torch.Tensor]] = {
    "cholesky of nothing": lambda d: torch.cholesky(torch.ones(0, 0, device=d)),
    "cholesky of matrices without elements": lambda d: torch.cholesky(torch.ones(0, 5, device=d)),
    "batch_norm of nothing": lambda d: F.batch_norm(*torch.ones(3, 0, device=d), training=False),
    "all": lambda d: torch.ones(0, 0, 2, device=d).all((0, 1)),
    "unsafe_chunk": lambda d: torch.unsafe_chunk(torch.ones(0, 0, device=d), 2)[0],
    "pad of a batch of none": lambda d: F.pad(
        torch.ones(0, 1, 3, 3, device=d), (1, 1, 1, 1), mode="reflect"
    ),
    "index_add of nothing": lambda d: torch.ones(2, 0, device=d).index_add(
        0, torch.tensor([0], device=d), torch.ones(1, 0, device=d)
    ),
    "indices of nothing": lambda d: torch.ones(0, 2, device=d)[
        torch.zeros(0, dtype=torch.int64, device=d)
    ],
    "masked_scatter from nothing": lambda d: torch.ones(3, device=d).masked_scatter(
        torch.zeros(3, device=d) > 0, torch.ones(0, device=d)
    ),
    "gradient of a number's softmax": lambda d: torch.ops.aten._softmax_backward_data(
        torch.tensor(3.0, device=d), torch.tensor(0.5, device=d), 0, torch.float32
    ),
    "from behind the start": lambda d: torch.ones(3, device=d).slice_scatter(
        torch.zeros(2, device=d), 0, -9, 2
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_right_size(name: str) -> None:
    torch.testing.assert_close(ACCEPTED[name]("xla").cpu(), ACCEPTED[name]("cpu"))


def test_gradient_of_a_mask_that_selects_nothing() -> None:
    x = torch.ones(3, device="xla", requires_grad=True)
    torch.masked_select(x, x < 0).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), torch.zeros(3))
