"""Encode a PyTorch operator's arguments and returns as text, for a call's attributes.

The text has a word for each argument of the schema, in order, and is read by
csrc/launchers/torch_operator_arguments.cc:

- ``t0``: the call's operand 0, a tensor
- ``r1``: the buffer of its result 1, for an out= argument; ``r1=0``: for one that is written to,
  and that lies in operand 0's buffer
- ``n``, ``b1``, ``i-3``, ``f0x1.8p+1``, ``s5:a b c``: None and Python's numbers and str
- ``dfloat32``: a dtype; ``D``: the device on which the call runs
- ``[2``: a list, whose elements follow

Then it has a word for each return value: ``r0`` is copied to result 0, ``-`` lies in an argument's
buffer, and other values must equal those that the fake function returned.
"""

from collections.abc import Callable

import torch

# torch's enumeration types, which are int in a schema.
_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def encode(value: object, tensor: Callable[[torch.Tensor], str]) -> str:
    """Return the words for a value; `tensor` gives those for a tensor.

    Raises:
        TypeError: a kernel on a device cannot receive this value.
    """
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if isinstance(value, (list, tuple)):
        return " ".join([f"[{len(value)}", *(encode(item, tensor) for item in value)])
    if value is None:
        return "n"
    if isinstance(value, bool):
        return f"b{int(value)}"
    if isinstance(value, (int, torch.SymInt)):
        return f"i{int(value)}"
    if isinstance(value, (float, torch.SymFloat)):
        return f"f{float(value).hex()}"
    if isinstance(value, str):
        return f"s{len(value.encode())}:{value}"
    if isinstance(value, torch.dtype):
        return f"d{str(value).removeprefix('torch.')}"
    if isinstance(value, torch.device):
        return "D"
    if isinstance(value, torch.memory_format):
        return f"i{_MEMORY_FORMATS[value]}"
    if value is torch.strided:
        return "i0"
    raise TypeError(f"a {type(value).__name__} cannot be part of an XLA program")
