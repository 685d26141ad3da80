"""Map between XLA's element types and PyTorch's dtypes."""

import torch

# torch.dtype: (XLA's name, its number in xla::PrimitiveType).
XLA_TYPES = {
    torch.bool: ("PRED", 1),
    torch.int8: ("S8", 2),
    torch.int16: ("S16", 3),
    torch.int32: ("S32", 4),
    torch.int64: ("S64", 5),
    torch.uint8: ("U8", 6),
    torch.uint16: ("U16", 7),
    torch.uint32: ("U32", 8),
    torch.uint64: ("U64", 9),
    torch.float16: ("F16", 10),
    torch.float32: ("F32", 11),
    torch.float64: ("F64", 12),
    torch.complex64: ("C64", 15),
    torch.bfloat16: ("BF16", 16),
    torch.complex128: ("C128", 18),
    torch.float8_e5m2: ("F8E5M2", 19),
    torch.float8_e4m3fn: ("F8E4M3FN", 20),
    torch.float8_e8m0fnu: ("F8E8M0FNU", 33),
    # Two values of F4E2M1FN in a byte. XLA's type has single values only.
    torch.float4_e2m1fn_x2: ("F4E2M1FNX2", 200),
}
# torch_xla has no tensors of these types: tensors of torch.uint8 with the same bytes are accepted.
# S4X2 and U4X2 are two integers of four bits in a byte.
PASSED_AS_BYTES = ("F8E8M0FNU", "F4E2M1FNX2", "F8E3M4", "S4X2", "U4X2")
TORCH_TYPES = {name: dtype for dtype, (name, _) in XLA_TYPES.items()}
# torch lacks these types, or has only a name, as for torch.int4: no operations, one element a byte.
TORCH_TYPES |= dict.fromkeys(("F8E3M4", "S4X2", "U4X2"), torch.uint8)
TORCH_TYPES_BY_NUMBER = {number: dtype for dtype, (_, number) in XLA_TYPES.items()}


def xla_name(dtype: torch.dtype) -> str:
    """Return XLA's name of a dtype, or torch's name if XLA lacks the type."""
    return XLA_TYPES[dtype][0] if dtype in XLA_TYPES else str(dtype)
