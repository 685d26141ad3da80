"""Make a StableHLO module with one custom call, which torch-tpu inserts into its programs."""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch_tpu._internal.pallas import tpu_torch_pallas as _front_end

from xla_kernels import ArrayType
from xla_kernels.signature import ffi_attributes

_ELEMENT_TYPES = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "ui8",
    torch.uint16: "ui16",
    torch.uint32: "ui32",
    torch.uint64: "ui64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e5m2: "f8E5M2",
}
# The API version of a call (xla::CustomCallApiVersion): XLA's FFI, or that of XLA's own targets.
_TYPED_FFI, _STATUS_RETURNING = 4, 2
# The name under which copy() registers its identity module with torch-tpu.
_COPY = "torch_xla_gpu_copy"


class Prepared(NamedTuple):
    """A call without its operands.

    Attributes:
        target: the target's name in the program.
        key: the module's key in torch-tpu.
        results: meta tensors that describe the results.
        donated: the operands whose buffers receive results.
    """

    target: str
    key: str
    results: list[torch.Tensor]
    donated: list[int]

    def __call__(self, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Make the call with tensors of the device, which are first made row-major."""
        return _front_end.call_custom_kernel(
            self.target,
            self.key,
            inputs=[tensor.contiguous() for tensor in operands],
            output_shapes=self.results,
            donate_argnums=self.donated,
            device_assignment=[],
        )


def call(
    target: str, inputs: Sequence[torch.Tensor], results: Sequence[ArrayType], **options: object
) -> list[torch.Tensor]:
    """Call a target with tensors of the device, eagerly or in the program that is being traced.

    Args:
        options: as of `prepare`.
    """
    return prepare(target, [ArrayType.of(tensor) for tensor in inputs], results, **options)(inputs)


def prepare(
    target: str,
    operands: Sequence[ArrayType],
    results: Sequence[ArrayType],
    *,
    attributes: Mapping[str, object] | None = None,
    payload: bytes | None = None,
    aliases: Mapping[int, int] | None = None,
    layouts: Mapping[int, Sequence[int]] | None = None,
    operand_layouts: Mapping[int, Sequence[int]] | None = None,
    has_side_effect: bool = False,
) -> Prepared:
    """Return a call without its operands.

    Args:
        target: the target's name in the program.
        operands, results: the types of the operands and the results.
        attributes: the attributes of an FFI target.
        payload: the payload of one of XLA's own targets.
        aliases: {result: operand} for results in an operand's buffer. The operand is donated:
            nothing else may read the tensor's old value afterwards.
        layouts: {result: dimensions} for results that are not row-major, the slowest-changing
            dimension first.
        operand_layouts: {operand: dimensions}, the same for operands.
        has_side_effect: XLA keeps the call even if nothing in the program uses its results.
    """
    text = _module(
        target,
        tuple(ArrayType(tuple(shape), dtype) for shape, dtype in operands),
        tuple(ArrayType(tuple(shape), dtype) for shape, dtype in results),
        ffi_attributes.encode(attributes or {}) if payload is None else None,
        payload,
        tuple(sorted((aliases or {}).items())),
        _sorted(layouts),
        _sorted(operand_layouts),
        has_side_effect,
    )
    return Prepared(
        target,
        _registered(target, text),
        [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in results],
        sorted(set((aliases or {}).values())),
    )


def copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a row-major copy in a separate buffer, which can be donated.

    torch-tpu's `clone` shares the buffer until one of the tensors is written to by an operator of
    PyTorch's; if that buffer is donated, the other tensor is gone.
    """
    array = ArrayType(tuple(tensor.shape), tensor.dtype)
    type_ = _type(array)
    text = f"""module {{
  func.func public @main(%arg0: {type_}) -> {type_} {{
    return %arg0 : {type_}
  }}
}}
"""
    meta = [torch.empty(array.shape, dtype=array.dtype, device="meta")]
    return Prepared(_COPY, _registered(_COPY, text), meta, [])([tensor])[0]


# Layouts by the indices of operands or results.
_Layouts = tuple[tuple[int, tuple[int, ...]], ...]


@functools.lru_cache(maxsize=4096)
def _registered(target: str, text: str) -> str:
    key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    if not _front_end.lookup_custom_kernel(target, key):
        _front_end.register_custom_kernel(target, key, serialized_mlir_module=text)
    return key


@functools.lru_cache(maxsize=4096)
def _module(
    target: str,
    operands: tuple[ArrayType, ...],
    results: tuple[ArrayType, ...],
    attributes: str | None,
    payload: bytes | None,
    aliases: tuple[tuple[int, int], ...],
    layouts: _Layouts,
    operand_layouts: _Layouts,
    has_side_effect: bool,
) -> str:
    """Return the module's text."""
    arguments = [f"%arg{i}" for i in range(len(operands))]
    operand_types, result_types = [_type(t) for t in operands], [_type(t) for t in results]
    declared = zip(arguments, operand_types, strict=True)
    values = ["%0"] if len(results) == 1 else [f"%0#{i}" for i in range(len(results))]
    config = attributes if payload is None else ffi_attributes.string(payload)
    orders = [dict(layouts).get(i, range(len(each.shape))) for i, each in enumerate(results)]
    operand_orders = [
        dict(operand_layouts).get(i, range(len(each.shape))) for i, each in enumerate(operands)
    ]
    alias_attributes = [
        "#stablehlo.output_operand_alias<output_tuple_indices = "
        f"[{result if len(results) > 1 else ''}], operand_index = {operand}, "
        "operand_tuple_indices = []>"
        for result, operand in aliases
    ]
    return f"""module {{
  func.func public @main({", ".join(f"{name}: {each}" for name, each in declared)}) -> ({
        ", ".join(result_types)
    }) {{
    %0{f":{len(results)}" if len(results) > 1 else ""} = stablehlo.custom_call @{
        ffi_attributes.string(target.encode())
    }({", ".join(arguments)}) {{
      api_version = {_TYPED_FFI if payload is None else _STATUS_RETURNING} : i32,
      backend_config = {config},
      has_side_effect = {str(has_side_effect).lower()},
      operand_layouts = [{", ".join(map(_layout, operand_orders))}],
      result_layouts = [{", ".join(map(_layout, orders))}],
      output_operand_aliases = [{", ".join(alias_attributes)}]
    }} : ({", ".join(operand_types)}) -> ({", ".join(result_types)})
    return {", ".join(values)} : {", ".join(result_types)}
  }}
}}
"""


def _sorted(layouts: Mapping[int, Sequence[int]] | None) -> _Layouts:
    return tuple((i, tuple(dims)) for i, dims in sorted((layouts or {}).items()))


def _type(array: ArrayType) -> str:
    element = _ELEMENT_TYPES.get(array.dtype)
    if element is None:
        raise TypeError(f"XLA has no element type for {array.dtype}")
    return f"tensor<{''.join(f'{size}x' for size in array.shape)}{element}>"


def _layout(dims: Sequence[int]) -> str:
    """Return the text of a layout, from its dimensions with the slowest-changing first."""
    order = list(reversed(dims))
    return f"dense<{order if order else ''}> : tensor<{len(order)}xindex>"
