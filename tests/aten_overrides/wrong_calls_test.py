"""Calls that PyTorch refuses by shape or dtype alone: an error at the call, of one sentence."""

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from testing.as_on_the_cpu import CLOSE, check


def calls(device: str) -> dict[str, Callable[[], object]]:
    def o(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device=device)

    def i(*values: int) -> torch.Tensor:
        return torch.tensor(values, device=device, dtype=torch.int64)

    bits = o(2) > 0
    last = torch.channels_last
    return {
        "add: sizes": lambda: o(2) + o(3),
        "add_: sizes": lambda: o(2).add_(o(3)),
        "mul: sizes": lambda: o(2, 3) * o(2, 2),
        "lt: sizes": lambda: o(2) < o(3),
        "where: sizes": lambda: torch.where(o(2) > 0, o(3), o(3)),
        "where: float condition": lambda: torch.where(o(2), o(2), o(2)),
        "maximum: sizes": lambda: torch.maximum(o(2), o(3)),
        "lerp: sizes": lambda: o(2).lerp(o(3), 0.5),
        "lerp: dtypes": lambda: o(2).lerp(o(2).double(), 0.5),
        "addcmul: sizes": lambda: torch.addcmul(o(2), o(3), o(3)),
        "pow: negative": lambda: i(2, 3) ** -1,
        "neg: bool": lambda: -bits,
        "sub: bool": lambda: bits - bits,
        "clamp: no bound": lambda: o(2).clamp(),
        "bitwise_and: float": lambda: o(2).bitwise_and(o(2)),
        "mm: sizes": lambda: o(2, 3) @ o(2, 3),
        "mm: dtypes": lambda: o(2, 3) @ o(3, 2).double(),
        "mm: dimensions": lambda: torch.mm(o(2), o(2, 2)),
        "bmm: sizes": lambda: torch.bmm(o(2, 3, 4), o(2, 3, 4)),
        "bmm: dtypes": lambda: torch.bmm(o(2, 3, 4), o(2, 4, 3).half()),
        "mv: sizes": lambda: torch.mv(o(2, 3), o(2)),
        "dot: sizes": lambda: torch.dot(o(2), o(3)),
        "dot: dtypes": lambda: torch.dot(o(2), o(2).half()),
        "addmm: sizes": lambda: torch.addmm(o(3), o(2, 2), o(2, 2)),
        "baddbmm: dtypes": lambda: torch.baddbmm(o(1, 2, 2), o(1, 2, 2).half(), o(1, 2, 2)),
        "linear: sizes": lambda: F.linear(o(2, 3), o(4, 2)),
        "linear: a bias of another dtype": lambda: F.linear(o(3), o(4, 3), o(4).half()),
        "linear: a batch's bias": lambda: F.linear(o(2, 2, 3), o(4, 3), o(4).double()),
        "group_norm: parameters": lambda: F.group_norm(o(2, 4), 2, o(4).half(), o(4).half()),
        "complex: dtypes": lambda: torch.complex(o(2).half(), o(2)),
        "polar: dtypes": lambda: torch.polar(o(2).half(), o(2)),
        "logits: a boolean pos_weight": lambda: F.binary_cross_entropy_with_logits(
            o(2), o(2), pos_weight=bits
        ),
        "sub: a number and bool": lambda: torch.ops.aten.sub.Scalar(bits, 1),
        "index_fill: complex": lambda: o(2).index_fill(0, i(0), 1j),
        "masked_fill: complex": lambda: o(2).masked_fill(bits, torch.tensor(1j, device=device)),
        "masked_fill_: complex": lambda: o(2).masked_fill_(bits, torch.tensor(1j, device=device)),
        "x[mask]: complex": lambda: o(2).index_put_((bits,), torch.tensor(1j, device=device)),
        "linear: dtypes": lambda: F.linear(o(2, 3), o(4, 3).bfloat16()),
        "einsum: sizes": lambda: torch.einsum("ij,jk->ik", o(2, 3), o(4, 5)),
        "einsum: labels": lambda: torch.einsum("ijk,jk->ik", o(2, 3), o(3, 5)),
        "einsum: dtypes": lambda: torch.einsum("ij,jk->ik", o(2, 3), o(3, 5).half()),
        "conv2d: dtypes": lambda: F.conv2d(o(1, 1, 4, 4), o(1, 1, 3, 3).half()),
        "conv2d: channels": lambda: F.conv2d(o(1, 2, 4, 4), o(1, 1, 3, 3)),
        "conv_transpose2d: output_padding": lambda: F.conv_transpose2d(
            o(1, 1, 4, 4), o(1, 1, 3, 3), output_padding=2
        ),
        "max_pool2d: sizes": lambda: F.max_pool2d(o(1, 1, 2, 2), 3),
        "max_pool3d: nothing": lambda: F.max_pool3d(o(1, 1, 0, 2, 2), 1),
        "avg_pool2d: sizes": lambda: F.avg_pool2d(o(1, 1, 2, 2), 3),
        "avg_pool2d: divisor": lambda: F.avg_pool2d(o(1, 4, 4), 2, divisor_override=0),
        "avg_pool3d: dimensions": lambda: F.avg_pool3d(o(2, 2, 2), 2),
        "sum: dimension": lambda: o(2).sum(1),
        "amax: nothing": lambda: o(0).amax(),
        "amax: dimensions": lambda: o(2, 2).amax((0, 0)),
        "argmax: nothing": lambda: o(0).argmax(),
        "max: nothing": lambda: o(2, 0).max(1),
        "mean: integers": lambda: i(1, 2).mean(),
        "any: dimension": lambda: bits.any(1),
        "cumsum: dimension": lambda: o(2).cumsum(1),
        "softmax: dimension": lambda: o(2).softmax(2),
        "softmax: integers": lambda: i(1, 2).softmax(0),
        "linalg.vector_norm: integers": lambda: torch.linalg.vector_norm(i(1, 2)),
        "topk: size": lambda: o(2).topk(3),
        "kthvalue: size": lambda: o(2).kthvalue(3),
        "sort: dimension": lambda: o(2).sort(1),
        "cat: sizes": lambda: torch.cat([o(2, 2), o(2, 3)], 0),
        "cat: dimensions": lambda: torch.cat([o(2, 2), o(2)], 0),
        "view: sizes": lambda: o(2, 3).view(4),
        "view: two unknown": lambda: o(2, 3).view(-1, -1),
        "expand: sizes": lambda: o(2).expand(3),
        "t: dimensions": lambda: o(2, 2, 2).t(),
        "transpose: dimension": lambda: o(2, 2).transpose(0, 2),
        "permute: dimensions": lambda: o(2, 2).permute(0, 0),
        "roll: shifts": lambda: o(2, 2).roll((1, 1), (0,)),
        "tril: dimensions": lambda: o(2).tril(),
        "trace: dimensions": lambda: o(2).trace(),
        "gather: dimensions": lambda: o(2, 2).gather(0, i(0)),
        "gather: dtype": lambda: o(2).gather(0, o(2)),
        "gather: sizes": lambda: o(2, 2).gather(0, torch.zeros(1, 3, dtype=int, device=device)),
        "scatter: dtypes": lambda: o(2).scatter(0, i(0), o(1).double()),
        "scatter_add: dimensions": lambda: o(2, 2).scatter_add(0, i(0), o(1)),
        "index_select: dimensions": lambda: o(2).index_select(0, i(0, 1).view(2, 1)),
        "index_select: dtype": lambda: o(2).index_select(0, o(1)),
        "index_add: sizes": lambda: o(2, 2).index_add(0, i(0), o(1)),
        "put_: sizes": lambda: o(3).put_(i(0, 1), o(3)),
        "masked_fill: float mask": lambda: o(2).masked_fill(o(2), 1.0),
        "masked_fill: value": lambda: o(2).masked_fill(bits, o(2)),
        "masked_fill: overflow": lambda: i(1, 2).masked_fill(bits, 1e20),
        "embedding: weight": lambda: F.embedding(i(0), o(2)),
        "embedding: indices": lambda: F.embedding(o(1), o(2, 2)),
        "nll_loss: sizes": lambda: F.nll_loss(o(2, 3), i(0, 1, 2)),
        "mse_loss: sizes": lambda: F.mse_loss(o(2, 3), o(2, 2)),
        "glu: size": lambda: F.glu(o(3)),
        "softshrink: lambda": lambda: F.softshrink(o(2), -0.5),
        "gelu: integers": lambda: F.gelu(i(1, 2)),
        "layer_norm: sizes": lambda: F.layer_norm(o(2, 3), (2,)),
        "batch_norm: sizes": lambda: F.batch_norm(o(2, 3), o(2), o(2)),
        "multinomial: dimensions": lambda: o(2, 2, 2).multinomial(1),
        "multinomial: integers": lambda: i(1, 2).multinomial(1),
        "multinomial: samples": lambda: o(2).multinomial(3),
        "randint: bounds": lambda: torch.randint(5, 5, (2,), device=device),
        "uniform_: bounds": lambda: o(2).uniform_(3, -1),
        "eye: size": lambda: torch.eye(2, -3, device=device),
        "lt: complex": lambda: o(2).cfloat() < o(2).cfloat(),
        "fmod: complex": lambda: o(2).cfloat().fmod(2),
        "atan2: complex": lambda: torch.atan2(o(2).cfloat(), o(2).cfloat()),
        "sort: complex": lambda: o(2).cfloat().sort(),
        "max: complex": lambda: o(2).cfloat().max(),
        "max: nothing at all": lambda: o(0).max(),
        "cummax: complex": lambda: o(2).cfloat().cummax(0),
        "argmax: bool": lambda: bits.argmax(),
        "floor: bool": lambda: bits.floor(),
        "topk: bool": lambda: bits.topk(1),
        "kthvalue: bool": lambda: bits.kthvalue(1),
        "relu: bool": lambda: F.relu(bits),
        "hardswish: integers": lambda: F.hardswish(i(1, 2)),
        "logsigmoid: integers": lambda: F.logsigmoid(i(1, 2)),
        "cumsum: bool result": lambda: o(2).cumsum(0, dtype=torch.bool),
        "shift: float": lambda: o(2) << 1,
        "zeros: negative": lambda: torch.zeros(-1, device=device),
        "full: negative": lambda: torch.full((2, -1), 1.0, device=device),
        "fill_: dimensions": lambda: o(2).fill_(o(2)),
        "flip: twice": lambda: o(2, 2).flip(0, 0),
        "repeat: dimensions": lambda: o(2, 2).repeat(2),
        "take: dtype": lambda: o(2).take(o(1)),
        "pixel_shuffle: channels": lambda: F.pixel_shuffle(o(1, 3, 2, 2), 2),
        "reflection_pad: size": lambda: F.pad(o(1, 2, 2), (2, 2), mode="reflect"),
        "interpolate: size": lambda: F.interpolate(o(1, 1, 2, 2), size=(0, 2)),
        "svd: dimensions": lambda: torch.linalg.svd(o(2)),
        "cdist: integers": lambda: torch.cdist(i(1, 2)[None], i(1, 2)[None]),
        "layer_norm: dtypes": lambda: F.layer_norm(o(2, 2), (2,), o(2).double()),
        "batch_norm: integers": lambda: F.batch_norm(i(1, 2)[None], None, None, training=True),
        "index: float": lambda: o(2)[o(2)],
        "index: mask": lambda: o(2)[torch.ones(3, dtype=bool, device=device)],
        "assignment: dtypes": lambda: o(2).index_put_((i(0),), i(1)),
        "assignment: sizes": lambda: o(4).__setitem__(i(0, 1), o(3)),
        "index_fill_: dimensions": lambda: o(2).index_fill_(0, i(0, 1).view(2, 1), 1.0),
        "expand: dimensions": lambda: o(2, 3).expand(3),
        "index_fill_: dtype": lambda: o(2).index_fill_(0, o(1), 1.0),
        "embedding_bag: dtype": lambda: F.embedding_bag(o(2), o(2, 2), o(1)),
        "mvlgamma: order": lambda: torch.mvlgamma(o(2), 0),
        "random_: bounds": lambda: torch.randint(0, 300, (2,), device=device, dtype=torch.uint8),
        "bernoulli: integers": lambda: torch.bernoulli(i(0, 1)),
        "bernoulli: probability": lambda: torch.bernoulli(o(2), 1.5),
        "normal: deviation": lambda: torch.normal(o(2), -1.0),
        "uniform_: integers": lambda: i(1, 2).uniform_(),
        "logit_: integers": lambda: i(0, 1).logit_(),
        "addmv: dtypes": lambda: torch.addmv(o(2), o(2, 2), o(2).double()),
        "out: integers": lambda: torch.add(o(2), o(2), out=i(0, 0)),
        "out: a wider dtype": lambda: torch.max(o(2), 0, out=(o(1)[0].double(), i(0)[0])),
        "abs: bool": lambda: bits.abs(),
        "rsub: bool": lambda: torch.rsub(bits, bits),
        "rsub: bool and a number": lambda: 1 - bits,
        "addcmul: bool": lambda: torch.addcmul(bits, bits, bits),
        "mm: bool": lambda: bits[None] @ bits[:, None],
        "bmm: bool": lambda: torch.bmm(bits[None, None], bits[None, :, None]),
        "amax: complex": lambda: o(2).cfloat().amax(),
        "argmin: complex": lambda: o(2).cfloat().argmin(),
        "remainder: bool": lambda: bits % bits,
        "remainder: complex": lambda: o(2).cfloat() % 2,
        "bitwise_left_shift: float": lambda: o(2).bitwise_left_shift(o(2)),
        "bitwise_not: float": lambda: o(2).bitwise_not(),
        "gelu: approximation": lambda: F.gelu(o(2), approximate="erf"),
        "roll: dimension": lambda: o(2).roll(1, 2),
        "soft_margin_loss: sizes": lambda: F.soft_margin_loss(o(2, 2), o(2, 3)),
        "out: an operand of another size": lambda: torch.mul(x := o(2, 1), o(3), out=x),
        "ldexp_: sizes": lambda: o(2, 1).ldexp_(o(3)),
        "addr_: sizes": lambda: o(2, 1).addr_(o(2), o(3)),
        "masked_scatter_: mask": lambda: o(2).masked_scatter_(o(2, 2) > 0, o(2, 2)),
        "out: rounded in another dtype": lambda: torch.round(o(2), out=o(2).double()),
        "pow: overflow": lambda: i(1).byte() ** 300,
        "pad: overflow": lambda: F.pad(i(1).byte(), (1, 1), value=-1),
        "threshold: overflow": lambda: F.threshold(i(1).byte(), 300, 5),
        "addcmul: overflow": lambda: torch.addcmul(*[i(1).char()] * 3, value=300),
        "addcmul: complex value": lambda: torch.addcmul(o(1), o(1), o(1), value=1j),
        "addmm: complex factor": lambda: torch.addmm(o(1), o(1, 1), o(1, 1), alpha=1j),
        "addmv: overflow": lambda: torch.addmv(
            i(1).byte(), i(1)[None].byte(), i(1).byte(), beta=300
        ),
        "addr: overflow": lambda: torch.addr(i(1)[None].byte(), *[i(1).byte()] * 2, alpha=300),
        "floor_divide: zero": lambda: i(1) // 0,
        "remainder: zero": lambda: i(1).byte() % 256,
        "fmod: zero": lambda: i(1).fmod(0),
        "cdist: negative p": lambda: torch.cdist(o(2, 2), o(2, 2), p=-1),
        "nll_loss: weights": lambda: F.nll_loss(o(1, 2), i(0), o(2).double()),
        "xlogy: complex": lambda: torch.xlogy(o(2).cfloat(), o(2).cfloat()),
        "randperm: negative": lambda: torch.randperm(-1, device=device),
        "resize_: negative": lambda: o(2).resize_(-1),
        "nansum: dtype": lambda: o(2).nansum(dtype=torch.int64),
        # Sizes, of tensors without elements or dimensions, too.
        "sizes: logical_and": lambda: torch.logical_and(o(2), o(3)),
        "sizes: floor_divide": lambda: torch.floor_divide(o(2), o(3)),
        "sizes: shift": lambda: i(1, 2) << i(1, 2, 3),
        "sizes: masked_fill": lambda: o(3).masked_fill(bits, 1.0),
        "sizes: masked_fill with a tensor": lambda: o(3).masked_fill(bits, o()),
        "sizes: where": lambda: torch.where(bits, o(2), o(3)),
        "sizes: huber_loss": lambda: F.huber_loss(o(2), o(3)),
        "sizes: logits": lambda: F.binary_cross_entropy_with_logits(o(2), o(2), o(3)),
        "sizes: logits with pos_weight": lambda: F.binary_cross_entropy_with_logits(
            o(2), o(2), pos_weight=o(3)
        ),
        "sizes: soft_margin_loss": lambda: F.soft_margin_loss(o(1), o(2)),
        "sizes: expand": lambda: o(2, 3).expand(4, 3),
        "sizes: expand_copy": lambda: torch.expand_copy(o(2), (3,)),
        "sizes: expand of nothing": lambda: o(0, 1).expand(5, 5),
        "sizes: addmm": lambda: torch.addmm(o(3), o(2, 3), o(3, 4)),
        "sizes: baddbmm": lambda: torch.baddbmm(o(3), o(2, 2, 3), o(2, 3, 4)),
        "sizes: addr": lambda: torch.addr(o(5, 1), o(2), o(3)),
        "sizes: linear": lambda: F.linear(o(2, 3), o(4, 3), o(3)),
        "sizes: addcdiv": lambda: torch.addcdiv(o(2), o(2), o(3)),
        "sizes: stack": lambda: torch.stack([o(2), o(3)]),
        "sizes: stack of a number": lambda: torch.stack([o(2), o(), o(2)], -1),
        "sizes: permute_copy": lambda: torch.permute_copy(o(2), ()),
        "sizes: pad": lambda: F.pad(o(2), (1, 1, 1, 1)),
        "sizes: pad of a number": lambda: torch.constant_pad_nd(o(), (1, 1)),
        "sizes: replicate": lambda: F.pad(o(1, 0), (1, 1), mode="replicate"),
        "sizes: reflect": lambda: F.pad(o(0, 3), (1, 1), mode="reflect"),
        "sizes: nearest": lambda: F.interpolate(o(1, 1, 2, 0), size=(2, 2)),
        "sizes: bilinear": lambda: F.interpolate(o(1, 1, 2, 0), size=(2, 2), mode="bilinear"),
        "sizes: index_select": lambda: o(0, 2).index_select(0, i(0)),
        "sizes: gather": lambda: o(0, 2).gather(0, i(0)[None]),
        "sizes: index": lambda: o(0, 2)[i(0)],
        "sizes: index_copy": lambda: o(0).index_copy(0, i(0), o(1)),
        "sizes: index_fill": lambda: o(0).index_fill(0, i(0), 1.0),
        "sizes: index_fill with a vector": lambda: o(2).index_fill(0, i(0), o(1)),
        "sizes: index_add": lambda: o(2, 2).index_add(0, i(0), o(0, 2)),
        "sizes: index_add to nothing": lambda: o(0).index_add(0, i(0), o(1)),
        "sizes: values of a mask's elements": lambda: o(3).index_put((i(1, 0, 1) > 0,), o(3)),
        "sizes: addmv": lambda: torch.addmv(o(1, 2), o(2, 2), o(2)),
        "sizes: addr of a batch": lambda: torch.addr(o(1, 2, 2), o(2), o(2)),
        "sizes: coordinates of grid_sample": lambda: F.grid_sample(o(1, 1, 2, 2), o(1, 2, 2, 3)),
        "sizes: grid_sample of another batch": lambda: F.grid_sample(o(1, 1, 2, 2), o(2, 2, 2, 2)),
        "index_copy: dtypes": lambda: o(2).index_copy(0, i(0), o(1).double()),
        "index_fill: dimension": lambda: o().index_fill(1, i(0), 1.0),
        "sizes: too many indices": lambda: o(2).index_put((i(0), i(0)), o(1)),
        "sizes: values of a mask": lambda: o(2, 3).index_put((bits,), o(2)),
        "sizes: values of an empty mask": lambda: o(0, 5).index_put((o(0) > 0,), o(0)),
        "sizes: embedding": lambda: F.embedding(i(0), o(0, 3)),
        "sizes: take": lambda: o(0).take(i(0)),
        "sizes: put_": lambda: o(0).put_(i(0), o(1)),
        "sizes: select_scatter": lambda: o(2, 3).select_scatter(o(2), 0, 0),
        "sizes: select_scatter to nothing": lambda: o(0, 3).select_scatter(o(3), 0, 0),
        "sizes: slice_scatter": lambda: o(4).slice_scatter(o(3), 0, 0, 2),
        "sizes: diagonal_scatter": lambda: o(3, 3).diagonal_scatter(o(2)),
        "sizes: as_strided_scatter": lambda: o(4).as_strided_scatter(o(3), (2,), (1,)),
        "sizes: split_with_sizes_copy": lambda: torch.split_with_sizes_copy(o(4), [1, 2]),
        "sizes: adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(o(1, 2, 0, 3), 2),
        "sizes: cholesky": lambda: torch.cholesky(o(2, 5)),
        "sizes: eigh": lambda: torch.linalg.eigh(o(0, 5)),
        "sizes: nll_loss": lambda: F.nll_loss(o(2, 3), i(1)[0]),
        "sizes: nll_loss of images": lambda: F.nll_loss(o(2, 3, 4, 4), i(1, 1)),
        "sizes: weights of classes": lambda: F.nll_loss(o(2, 3), i(0, 1), o(2)),
        "sizes: batch_norm": lambda: F.batch_norm(o(), o(), o()),
        "sizes: bicubic": lambda: F.interpolate(o(1, 1, 2, 0), size=(2, 2), mode="bicubic"),
        "sizes: bicubic to nothing": lambda: F.interpolate(
            o(1, 1, 2, 2), size=(0, 2), mode="bicubic"
        ),
        "sizes: nearest-exact to nothing": lambda: F.interpolate(
            o(1, 1, 2, 2), size=(2, 0), mode="nearest-exact"
        ),
        "sizes: nearest without channels": lambda: F.interpolate(o(2, 0, 4, 4), size=(2, 2)),
        "sizes: nearest1d": lambda: F.interpolate(o(2, 3, 0), size=5),
        "sizes: trilinear": lambda: F.interpolate(
            o(1, 1, 2, 2, 2), size=(0, 2, 2), mode="trilinear"
        ),
        "sizes: trilinear without channels": lambda: F.interpolate(
            o(2, 0, 2, 2, 2), size=(2, 2, 2), mode="trilinear"
        ),
        "sizes: grid_sample": lambda: F.grid_sample(
            o(1, 1, 0, 4), o(1, 0, 3, 2), align_corners=False
        ),
        "sizes: native_group_norm's groups": lambda: torch.native_group_norm(
            o(2, 3, 4), None, None, 2, 3, 4, 2, 1e-5
        ),
        "sizes: native_group_norm's batch": lambda: torch.native_group_norm(
            o(2, 3, 4), None, None, 3, 3, 4, 1, 1e-5
        ),
        "sizes: native_group_norm's weight": lambda: torch.native_group_norm(
            o(2, 3, 4), o(3, 1), None, 2, 3, 4, 1, 1e-5
        ),
        "sizes: legit statistics": lambda: torch.ops.aten._native_batch_norm_legit(
            o(2, 3), None, None, o(2), o(2), True, 0.1, 1e-5
        ),
        "sizes: legit weight": lambda: torch.ops.aten._native_batch_norm_legit.no_stats(
            o(2, 3), o(1), None, True, 0.1, 1e-5
        ),
        "sizes: no_training": lambda: torch.ops.aten._native_batch_norm_legit_no_training(
            o(2, 3), None, None, o(4), o(4), 0.1, 1e-5
        ),
        "triangular_solve: integers": lambda: torch.triangular_solve(i(1)[None], i(1)[None]),
        "sizes: statistics": lambda: torch.native_batch_norm(
            o(2, 3), None, None, o(2), o(2), True, 0.1, 1e-5
        ),
        "sizes: kernel": lambda: F.conv1d(o(1, 3, 4), o(3, 3, 0), padding=1),
        "sizes: format of to": lambda: o(3).to(memory_format=last),
        "sizes: format of float": lambda: o(3).double().float(memory_format=last),
        "sizes: format of clone": lambda: o(3).clone(memory_format=last),
        "sizes: format of empty": lambda: torch.empty(3, device=device, memory_format=last),
        "sizes: format of empty_like": lambda: torch.empty_like(o(3), memory_format=last),
        "sizes: format of contiguous": lambda: o(3).t().contiguous(memory_format=last),
        "sizes: a transposed convolution to nothing": lambda: F.conv_transpose1d(
            o(1, 1, 1), o(1, 1, 1), padding=2
        ),
        "sizes: a transposed convolution of images": lambda: F.conv_transpose2d(
            o(1, 1, 2, 2), o(1, 1, 2, 2), padding=(0, 2)
        ),
        "sizes: dilation": lambda: F.conv2d(o(1, 1, 2, 2), o(1, 1, 1, 1), dilation=0),
        "sizes: max_pool3d of three dimensions": lambda: F.max_pool3d(
            o(2, 2, 2), 2, return_indices=True
        ),
        "sizes: max_pool2d's kernel": lambda: F.max_pool2d(o(1, 4, 4), (2, 2, 2)),
        "sizes: max_pool3d's stride": lambda: F.max_pool3d(o(1, 4, 4, 4), 2, (2, 2)),
        "sizes: adaptive_avg_pool3d": lambda: F.adaptive_avg_pool3d(o(2, 2, 2), 2),
        "sizes: pixel_shuffle of a volume": lambda: F.pixel_shuffle(o(1, 4, 3, 2, 2), 2),
        "sizes: as_strided_scatter beyond the end": lambda: o(4).as_strided_scatter(
            o(2), (2,), (1,), 3
        ),
        "sizes: as_strided_scatter from behind": lambda: o(4).as_strided_scatter(
            o(2), (2,), (1,), -3
        ),
        "sizes: as_strided_scatter's strides": lambda: o(4).as_strided_scatter(o(2), (2,), (1, 1)),
        "sizes: view_as_complex_copy": lambda: torch.view_as_complex_copy(o(2, 3)),
        "sizes: scatter to nothing": lambda: o(0).scatter(0, i(0), o(1)),
        "sizes: scatter of a number": lambda: o(2, 0).scatter(1, i(0, 0)[:, None], 2.0),
        "sizes: scatter_add": lambda: o(0).scatter_add(0, i(0), o(1)),
        "sizes: scatter_reduce": lambda: o(0).scatter_reduce(0, i(0), o(1), "amax"),
        "sizes: log_softmax's gradient": lambda: torch.ops.aten._log_softmax_backward_data(
            o(2, 3), o(2, 2), 1, torch.float32
        ),
        "softmax's gradient: dtypes": lambda: torch.ops.aten._softmax_backward_data(
            o(2, 3).half(), o(2, 3), 1, torch.float32
        ),
        "view_as_real_copy: dtype": lambda: torch.view_as_real_copy(o(2)),
        "hardtanh: uint8": lambda: F.hardtanh(i(1, 2).byte()),
        "huber_loss: integers": lambda: F.huber_loss(i(1, 2), o(2)),
        "native_batch_norm: a mean alone": lambda: torch.native_batch_norm(
            o(2, 3), None, None, o(3), None, True, 0.1, 1e-5
        ),
    }


# PyTorch's CPU reads memory that the tensors do not have.
UNCHECKED_BY_PYTORCH = {
    "sizes: nll_loss",
    "sizes: statistics",
    "sizes: batch_norm",
    "sizes: legit statistics",
    "sizes: legit weight",
    "sizes: no_training",
    "sizes: log_softmax's gradient",
}


@pytest.mark.parametrize("name", calls("cpu"))
def test_a_wrong_call(name: str) -> None:
    if name not in UNCHECKED_BY_PYTORCH:
        with pytest.raises((RuntimeError, IndexError, ValueError)):
            calls("cpu")[name]()
    with pytest.raises((RuntimeError, IndexError, ValueError)) as caught:
        calls("xla")[name]()
    text = str(caught.value)
    assert not re.search("Check failed|Non-OK|INVALID_ARGUMENT|Error while lowering|ASSERT", text)
    assert "stack trace" not in text
    assert "\n" not in text or not name.startswith("sizes")


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.roll(0, 0),
        lambda x: torch.unbind_copy(x[None], 1),
        lambda x: torch.unbind_copy(x),
        lambda x: x.mean(1),
        lambda x: x.std(-2),
        lambda x: torch.var_mean(x, (0, 1)),
        lambda x: x[None][:0].max(0),
    ],
)
def test_a_wrong_dimension_is_an_index_error(call: Callable[[torch.Tensor], object]) -> None:
    for device in ("cpu", "xla"):
        with pytest.raises(IndexError):
            call(torch.tensor(1.0, device=device))


# Correct calls that PyTorch's functions for meta tensors would refuse, or nearly wrong ones.
NAN = float("nan")
ACCEPTED = {
    "a number of the CPU": lambda x, d: x + torch.tensor(2.0),
    "a sum of nothing": lambda x, d: x[:0].sum(),
    "labels of size 1": lambda x, d: torch.einsum("ij,jk->ik", x[:, :1], x),
    "dots": lambda x, d: torch.einsum("...ij,jk->...ik", x.expand(2, 3, 3), x),
    "a mask of bytes": lambda x, d: torch.where((x > 1).byte() > 0, x, -x),
    "pools that end beyond": lambda x, d: F.max_pool2d(x[None], 2, ceil_mode=True),
    "a batch of none": lambda x, d: F.max_pool2d(x.expand(0, 1, 3, 3), 2),
    "one column": lambda x, d: x @ torch.ones(3, 0, device=d),
    "rows of other sizes": lambda x, d: x.gather(0, torch.zeros(1, 2, dtype=int, device=d)),
    "a bound of NaN": lambda x, d: torch.stack(
        [x.clamp(*bounds) for bounds in ((NAN, None), (None, NAN), (NAN, 3), (2, NAN))]
    ),
    "one bound of NaN": lambda x, d: torch.stack([x.clamp_min(NAN), x.clamp_max(NAN)]),
    "an index of integers": lambda x, d: x[torch.tensor([0, 1], dtype=torch.int32, device=d)],
    "a mask of a row": lambda x, d: x[torch.tensor([True, False, True], device=d)],
    "an assignment by a mask": lambda x, d: x.clone().masked_fill_(x > 2, 0.0),
    "values of one element": lambda x, d: x.index_put((torch.tensor([0], device=d),), x[0, :1]),
    "fewer values than a mask has elements": lambda x, d: x.clone().index_put_(
        (x > 6,), torch.ones(2, device=d)
    ),
    "an out of a wider dtype": lambda x, d: torch.add(x, x, out=torch.empty(3, 3, device=d)),
    "an out of doubles": lambda x, d: torch.add(x, 1, out=torch.empty(3, 3, device=d).double()),
    "an out of floats": lambda x, d: torch.eq(x, 2, out=torch.empty(3, 3, device=d)),
    "places as out": lambda x, d: torch.nonzero(x, out=torch.empty(0, 2, dtype=int, device=d)),
    "an index's result as out": lambda x, d: torch.index_select(
        x, 0, torch.tensor([1], device=d), out=torch.empty(1, 3, device=d)
    ),
    "mixed precision": lambda x, d: F.layer_norm(x.half(), (3,), torch.ones(3, device=d)).float(),
    "reductions of integers": lambda x, d: x.long().argmax(),
    "no steps": lambda x, d: torch.linspace(0, 1, 0, device=d),
    "a diagonal of another dtype": lambda x, d: x.diagonal_scatter(x[0].long()),
    "a row of another dtype": lambda x, d: x.long().select_scatter(x[0] / 2, 0, 1),
    "rows of another dtype": lambda x, d: x.slice_scatter(x[:2].double(), 0, 1),
    "strided elements of another dtype": lambda x, d: x.as_strided_scatter(x[0].int(), (3,), (1,)),
    "a clamp of booleans to integers": lambda x, d: (x > 2).clamp_min(0),
    "an empty list member": lambda x, d: torch.cat([torch.ones(0, device=d), x]),
    "cholesky of nothing": lambda x, d: torch.cholesky(torch.ones(0, 0, device=d)),
    "cholesky of matrices without elements": lambda x, d: torch.cholesky(
        torch.ones(0, 5, device=d)
    ),
    "batch_norm of nothing": lambda x, d: F.batch_norm(*torch.ones(3, 0, device=d), training=False),
    "all": lambda x, d: torch.ones(0, 0, 2, device=d).all((0, 1)),
    "unsafe_chunk": lambda x, d: torch.unsafe_chunk(torch.ones(0, 0, device=d), 2)[0],
    "pad of a batch of none": lambda x, d: F.pad(
        torch.ones(0, 1, 3, 3, device=d), (1, 1, 1, 1), mode="reflect"
    ),
    "index_add of nothing": lambda x, d: torch.ones(2, 0, device=d).index_add(
        0, torch.tensor([0], device=d), torch.ones(1, 0, device=d)
    ),
    "indices of nothing": lambda x, d: torch.ones(0, 2, device=d)[
        torch.zeros(0, dtype=torch.int64, device=d)
    ],
    "an index of nothing beside an empty one": lambda x, d: torch.ones(0, 0, device=d)[
        torch.zeros(1, 0, dtype=torch.int64, device=d), torch.zeros(1, 1, dtype=int, device=d)
    ],
    "masked_scatter from nothing": lambda x, d: torch.ones(3, device=d).masked_scatter(
        torch.zeros(3, device=d) > 0, torch.ones(0, device=d)
    ),
    "gradient of a number's softmax": lambda x, d: torch.ops.aten._softmax_backward_data(
        torch.tensor(3.0, device=d), torch.tensor(0.5, device=d), 0, torch.float32
    ),
    "from behind the start": lambda x, d: torch.ones(3, device=d).slice_scatter(
        torch.zeros(2, device=d), 0, -9, 2
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_right_call_is_accepted(name: str) -> None:
    check(lambda x: ACCEPTED[name](x, x.device), torch.arange(9.0).view(3, 3), **CLOSE)


def test_an_upstream_check_has_no_stack() -> None:
    x = torch.ones(2, 2, device="xla")
    with pytest.raises(RuntimeError, match=r"Check failed: .*\(torch_xla/csrc/\S*:\d+\)$"):
        torch.ops.aten.mse_loss_backward(x, x, torch.ones(2, 3, device="xla"), 1)


def test_float_classes_are_computed_with_a_warning() -> None:
    """Programs for upstream train with such classes, which PyTorch refuses."""
    logits, classes = torch.randn(2, 3), torch.tensor([0.0, 2.0])
    with pytest.warns(UserWarning, match="the classes are of dtype Float"):
        found = F.cross_entropy(logits.to("xla"), classes.to("xla"))
    torch.testing.assert_close(found.cpu(), F.cross_entropy(logits, classes.long()))


def test_gradient_of_a_mask_that_selects_nothing() -> None:
    x = torch.ones(3, device="xla", requires_grad=True)
    torch.masked_select(x, x < 0).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), torch.zeros(3))
