"""Run operators without torch_xla kernels on the device, with PyTorch's decompositions.

torch_xla would compute them on the host: slowly, while the device waits, and not in a captured
step. Among them are the gradients of interpolation, which most image segmentation models use.

A decomposition consists of differentiable operators, so it needs no derivative formula.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from unittest import mock

import torch
from torch import _prims_common
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._decomp.decompositions import upsample_compute_output_size
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

# Operators whose decompositions, in torch._decomp.decompositions and not torch._refs, consist of
# differentiable operators. tests/aten_overrides/decompositions_test.py compares each with the CPU.
_OPERATORS = (
    "_adaptive_avg_pool2d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "_weight_norm_interface",
    "addmv",
    "aminmax",
    "channel_shuffle",
    "col2im",
    "grid_sampler_2d",
    "im2col",
    "multi_margin_loss",
    "nansum",
    "renorm",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
    "upsample_bicubic2d",
    "upsample_nearest1d",
    "upsample_nearest3d",
)
# These have a kernel, but their gradients have none.
_FOR_GRADIENTS = ("upsample_bilinear2d", "upsample_nearest2d", "upsample_trilinear3d")

_ADAPTIVE_POOL = torch.ops.aten._adaptive_avg_pool2d.default
# PyTorch's kernels require operands of one dtype; the decompositions would convert them.
_OF_ONE_DTYPE = ("addmv", "grid_sampler_2d")
_OF_ADDMV = ((0, 2, 1), (1, 2, 1))  # the operands' dimensions
_NEAREST = 1  # an interpolation mode of grid_sampler_2d
# Dtypes beside those of floats with which PyTorch's CPU computes.
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_COMPLEX = (torch.complex64, torch.complex128)
_OTHER_DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "_adaptive_avg_pool2d": (),
    "col2im": (torch.bool, *_COMPLEX),
    "grid_sampler_2d": (),
    "hardshrink": (),
    "im2col": (torch.bool, *_COMPLEX),
    "multi_margin_loss": (),
    "nansum": (*_INTEGERS, torch.bool),
    "replication_pad1d": _INTEGERS + _COMPLEX,
    "replication_pad2d": _INTEGERS + _COMPLEX,
    "replication_pad3d": _INTEGERS + _COMPLEX,
    "softshrink": (),
    "upsample_linear1d": (),
    "upsample_trilinear3d": (),
}

_LIBRARY = torch.library.Library("aten", "IMPL")
_is_traced_for_xla = contextvars.ContextVar("_is_traced_for_xla", default=False)


def register() -> None:
    """Register the decompositions for XLA tensors."""
    for name in _OPERATORS + _FOR_GRADIENTS:
        operator = getattr(torch.ops.aten, name).default
        kernel = _decomposed(operator, only_for_gradients=name in _FOR_GRADIENTS)
        _LIBRARY.impl(operator, kernel, "AutogradXLA")
    _LIBRARY.impl("multilabel_margin_loss_forward", _multilabel_margin_loss, "AutogradXLA")
    _LIBRARY.impl("_fft_r2c", _fft_r2c, "AutogradXLA")
    _check_traced_calls()


def _check_traced_calls() -> None:
    """Check calls that torch.compile traces by PyTorch's functions in Python, which check less.

    They take the place of the operators' kernels, which refuse such calls.
    """
    aten = torch.ops.aten
    for operator in (aten.logit_.default, aten.masked_scatter_.default):
        operator.py_kernels[DispatchKey.Meta] = DispatchKey.Meta  # csrc/.../in_place_checks.h
    aten.one_hot.default.py_impl(DispatchKey.CompositeImplicitAutograd)(_one_hot)
    in_place = [aten.addcdiv_.default, aten.addcmul_.default]
    for packet in (aten.add_, aten.div_, aten.mul_, aten.sub_):
        in_place += [packet.Scalar, packet.Tensor]
    packets = [getattr(aten, name) for name in _OPERATORS + _FOR_GRADIENTS]
    interpolations = [packet.vec for packet in packets if "vec" in packet.overloads()]
    interpolations.append(aten.upsample_linear1d.vec)
    checks = {
        aten.dropout.default: _check_probability,
        aten.hardshrink.default: _check_traced_dtypes,
        aten.softshrink.default: _check_traced_dtypes,
        **dict.fromkeys(in_place, _check_result_dtype),
        **dict.fromkeys(interpolations, _check_interpolation),
    }
    for operator, check in checks.items():
        for key, function in operator.py_kernels.items():
            operator.py_kernels[key] = functools.partial(_checked, check, operator, function)


def _checked(
    check: Callable[..., None],
    operator: torch._ops.OpOverload,
    function: Callable[..., object],
    *args: object,
    **options: object,
) -> object:
    check(operator, args, options)
    return function(*args, **options)


def _check_probability(
    operator: torch._ops.OpOverload, args: Sequence[object], options: object
) -> None:
    name, probability = operator.overloadpacket.__name__, args[1]
    if not 0 <= probability <= 1:
        raise RuntimeError(f"{name} probability has to be between 0 and 1, but got {probability}")


def _check_result_dtype(
    operator: torch._ops.OpOverload, args: Sequence[object], options: object
) -> None:
    """Refuse an in-place operator whose result the operand's dtype cannot hold."""
    aten, kinds = torch.ops.aten, _prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND
    divides = operator.overloadpacket in (aten.addcdiv_, aten.div_)
    kind = kinds.INT_TO_FLOAT if divides else kinds.DEFAULT
    _, dtype = _prims_common.elementwise_dtypes(*args, type_promotion_kind=kind)
    if not torch.can_cast(dtype, args[0].dtype):
        raise RuntimeError(
            f"{operator.overloadpacket.__name__}: result type {dtype} can't be cast to the desired "
            f"output type {args[0].dtype}"
        )


def _check_traced_dtypes(
    operator: torch._ops.OpOverload, args: Sequence[object], options: Mapping[str, object]
) -> None:
    if args[0].device.type == "xla":
        _check_dtypes(operator, args, options)


def _check_interpolation(
    operator: torch._ops.OpOverload, args: Sequence[object], options: Mapping[str, object]
) -> None:
    if args[0].device.type == "xla":
        _check_dtypes(operator, args, options)
        size = upsample_compute_output_size(args[0].shape, args[1], args[-1])
        _check_sizes(operator, (args[0], size))


def _one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Return a traced one_hot, whose trace neither checks nor has a node of its own."""
    if _is_traced_for_xla.get() and num_classes != -1 and x.numel():
        torch._assert_async((x >= 0).all(), "Class values must be non-negative.")
        is_small = (x < num_classes).all()
        torch._assert_async(is_small, "Class values must be smaller than num_classes.")
    operator = torch.ops.aten.one_hot.default
    return operator._op_dk(DispatchKey.CompositeImplicitAutograd, x, num_classes)


def _fft_r2c(x: torch.Tensor, dims: list[int], normalization: int, onesided: bool) -> torch.Tensor:
    """Return a Fourier transform of real numbers, by that of complex ones if it needs a gradient.

    PyTorch's gradient reads the sizes of its operand after the operand was updated, as that of
    irfft is, and may have been freed: it raised an error about sizes, or ended the process.
    """
    if not _needs_gradients(x):
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.aten._fft_r2c(x, dims, normalization, onesided)
    result = torch.ops.aten._fft_c2c(
        torch.complex(x, torch.zeros_like(x)), dims, normalization, True
    )
    return result.narrow(dims[-1], 0, x.shape[dims[-1]] // 2 + 1) if onesided else result


def _multilabel_margin_loss(
    x: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss, and a mask of the target classes, which are those before the first -1.

    PyTorch's decomposition wrongly adds the loss of class 0 for each missing target.
    """
    if x.shape != target.shape or x.dim() > 2 or x.shape[-1:] == (0,):
        raise RuntimeError(
            "multilabel_margin_loss: expected input and target of one size, [], [C] or [N, C], but "
            f"got {list(x.shape)} and {list(target.shape)}"
        )
    if not x.is_floating_point():
        raise NotImplementedError(f"multilabel_margin_loss: not implemented for {x.dtype}")
    if x.dim() == 0:
        loss, is_target = _multilabel_margin_loss(x[None], target[None], reduction)
        return loss, is_target[0]
    classes = x.shape[-1]
    numbers = torch.arange(classes, device=x.device)
    end = torch.where(target == -1, numbers, classes).amin(-1, keepdim=True)
    labels = torch.where(numbers < end, target, -1)
    of_labels = x.gather(-1, labels.clamp(min=0))
    is_target = (labels.unsqueeze(-1) == numbers).any(-2)
    margins = 1 - of_labels.unsqueeze(-1) + x.unsqueeze(-2)
    is_counted = (labels >= 0).unsqueeze(-1) & ~is_target.unsqueeze(-2) & (margins > 0)  # no NaN
    loss = torch.where(is_counted, margins / classes, 0).sum((-2, -1))
    if reduction:
        loss = loss.mean() if reduction == 1 else loss.sum()
    return loss, is_target.to(x.dtype)


@functools.cache
def of_operators_without_kernels() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    """Return PyTorch's decompositions, for traces of tensors on other devices.

    Those devices have kernels for more operators, and no part of such a trace may run on the host.
    index_fill is left out: its decomposition writes to a new tensor if the operand is not
    row-major, which AOTAutograd refuses.
    """
    return {
        operator: decomposition
        for operator, decomposition in torch._decomp.core_aten_decompositions().items()
        if isinstance(operator, torch._ops.OpOverload)
        and operator.overloadpacket is not torch.ops.aten.index_fill
        and not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "XLA")
    }


@contextlib.contextmanager
def traced_for_xla(options: dict[str, object], inputs: Sequence[object]) -> Iterator[None]:
    """Make traces consist of operators for which torch_xla has kernels.

    PyTorch traces with operators of the inputs' device, and only that device supports some of them.

    Args:
        options: the options of AOTAutograd, which traces.
        inputs: the arguments of the traced function.
    """
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    before = _is_traced_for_xla.set(True)
    try:
        if tensors and all(tensor.device.type == "xla" for tensor in tensors):
            yield
            return
        from torch_xla_ext.attention import scaled_dot_product

        with (
            mock.patch.dict(options, decompositions=of_operators_without_kernels()),
            scaled_dot_product.in_graphs_of_own_tensors(),
        ):
            yield
    finally:
        _is_traced_for_xla.reset(before)


def _decomposed(
    operator: torch._ops.OpOverload, *, only_for_gradients: bool
) -> Callable[..., object]:
    decomposition = decomposition_table[operator]

    def kernel(*args: object, **options: object) -> object:
        _check_sizes(operator, args)
        _check_dtypes(operator, args, options)
        # The decomposition of a pool to an empty result divides by 0.
        is_pool_to_nothing = operator is _ADAPTIVE_POOL and min(args[1]) <= 0
        if is_pool_to_nothing or (only_for_gradients and not _needs_gradients(*args)):
            with torch._C._AutoDispatchBelowAutograd():
                return operator(*args, **options)
        if operator is torch.ops.aten.renorm.default and args[0].itemsize == 2:
            # In 16 bits, the decomposition has a conversion that is not differentiable.
            return decomposition(args[0].float(), *args[1:], **options).to(args[0].dtype)
        result = decomposition(*args, **options)
        if operator is torch.ops.aten.grid_sampler_2d.default and args[2] == _NEAREST:
            # The decomposition rounds the grid and gives it no gradient; PyTorch's gradient is 0.
            result = result + 0 * args[1].nan_to_num(0, 0, 0).sum()
        return result

    return kernel


def _check_dtypes(
    operator: torch._ops.OpOverload, args: Sequence[object], options: Mapping[str, object]
) -> None:
    name = operator.overloadpacket.__name__
    dtypes = [value.dtype for value in args if isinstance(value, torch.Tensor)]
    others = _OTHER_DTYPES.get(name, (torch.uint8,) if "upsample" in name else None)
    if others is not None and not dtypes[0].is_floating_point and dtypes[0] not in others:
        raise NotImplementedError(f"{name}: not implemented for {dtypes[0]}")
    if name in _OF_ONE_DTYPE and len(set(dtypes)) > 1:
        raise RuntimeError(f"{name}: expected operands of one dtype, but got {dtypes}")
    if name == "addmv" and not (dtypes[0].is_floating_point or dtypes[0].is_complex):
        for factor in options.values():
            with _disable_current_modes():  # those of a trace, which compute no numbers
                torch.full((), factor, dtype=dtypes[0])  # raises if the dtype does not have it
    if name == "nansum" and dtypes[0].is_floating_point:
        dtype = options.get("dtype")
        if isinstance(dtype, torch.dtype) and not dtype.is_floating_point:
            raise NotImplementedError(f"nansum: not implemented for {dtype} of {dtypes[0]}")


def _check_sizes(operator: torch._ops.OpOverload, args: Sequence[object]) -> None:
    """Refuse images without pixels or channels, and other sizes, as PyTorch's kernels do."""
    name = operator.overloadpacket.__name__
    if name == "addmv" and (args[0].dim(), args[1].dim(), args[2].dim()) not in _OF_ADDMV:
        raise RuntimeError(
            "vector + matrix @ vector expected, got "
            f"{args[0].dim()}, {args[1].dim()}, {args[2].dim()}"
        )
    if name == "grid_sampler_2d":
        image, grid = args[0].shape, args[1].shape
        if len(grid) != 4 or grid[-1] != 2 or image[:1] != grid[:1]:
            raise RuntimeError(
                f"grid_sampler: expected a grid of size {[*image[:1], 'height', 'width', 2]} for "
                f"an input of size {list(image)}, but got one of size {list(grid)}"
            )
    if "upsample" in name:
        image, size = args[0].shape, list(args[1])
        rank = len(size) + 2
        is_valid = len(image) == rank and 0 not in image[1:] and min(size) > 0
    elif name == "grid_sampler_2d":
        image, size, rank = args[0].shape, None, 4
        is_valid = 0 not in image[2:]
    else:
        return
    if not is_valid:
        to = "" if size is None else f", to be resized to {size}"
        raise RuntimeError(
            f"{name}: expected an image of {rank} dimensions, of which only that of the batch may "
            f"be empty, but got one of size {list(image)}{to}"
        )


def _needs_gradients(*args: object) -> bool:
    tensors = [argument for argument in args if isinstance(argument, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return True
    # Forward-mode AD: the number of the open level, -1 if there is none.
    return forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors
    )
