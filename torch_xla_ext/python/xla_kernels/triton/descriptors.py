"""Pass Triton's host tensor descriptors to compiled kernels.

XLA chooses a tensor's address when a program runs. So a traced launch stores the descriptor's
parameters, from which csrc/launchers/tensor_map.h encodes the tensor map at each launch.
"""

import copy
import dataclasses
import struct
from collections.abc import Iterator, Mapping, Sequence

from xla_kernels import launch as launches

# The form in which a compiled kernel receives a descriptor: a tensor map with these properties, by
# Triton's names. For GPUs without tensor maps, the base's address and numbers: {"flags": 2} means
# that the numbers include the first two of FLAGS.
Form = Mapping[str, object]

# Triton's type names of descriptors begin with this.
TYPE = "tensordesc<"
FLAGS = ("padding", "round_f32_to_tf32")  # 3.5 has added the first, 3.9 the second
# CUtensorMapDataType by Triton's numbers of the types, which differ from the driver's.
_DATA_TYPES = {**{i: i for i in range(16)}, 8: 10, 9: 8, 10: 9}
_TF32 = 11  # of CUtensorMapDataType


def is_descriptor(value: object) -> bool:
    """Return whether a value is a TensorDescriptor of Triton or Gluon, without importing them."""
    kind = type(value)
    return kind.__name__ == "TensorDescriptor" and kind.__module__.startswith("triton.")


def with_base(descriptor: object, base: object) -> object:
    """Return a descriptor with the same parameters for another tensor."""
    changed = copy.copy(descriptor)
    changed.base = base  # its constructor would check an address
    return changed


def forms(
    kernel: str, signature: Mapping[str, str], metadata: Sequence[Form] | None
) -> dict[str, Form]:
    """Return the form of each descriptor of a compiled kernel.

    Args:
        signature: the kernel's parameters and their types.
        metadata: Triton's `tensordesc_meta`.

    Raises:
        NotImplementedError: a descriptor's kind is not supported.
    """
    names = [name for name, type_ in signature.items() if type_.startswith(TYPE)]
    if not metadata:
        return {name: {"flags": len(_flags())} for name in names}
    found = dict(zip(names, map(dict, metadata), strict=True))
    for name, form in found.items():
        if form.pop("is_im2col", False):
            raise NotImplementedError(
                f"{kernel}: {name} is an im2col descriptor, which is not "
                "supported; pass a tiled one"
            )
    return found


def _flags() -> list[str]:
    """Return the flags of the installed Triton's descriptors."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    names = {field.name for field in dataclasses.fields(TensorDescriptor)}
    return [name for name in FLAGS if name in names]


def _flag(descriptor: object, name: str) -> bool:
    return getattr(descriptor, name, False) not in (False, "zero")


def check(kernel: str, name: str, type_: str, descriptor: object, dtype: str | None) -> None:
    """Refuse descriptors that the kernel was not compiled for, or that exceed their tensor.

    Args:
        type_: the parameter's, in the compiled kernel's signature.
        dtype: Triton's name of the base's dtype.

    Raises:
        TypeError, ValueError: the message has the parameter's name.
    """
    where = f"{kernel}: {name}"
    if not is_descriptor(descriptor):
        raise TypeError(
            f"{where} was compiled as {type_}, but the argument is not a tensor descriptor"
        )
    given = f"{TYPE}{dtype}{list(descriptor.block_shape)}"
    if type_.rstrip(">") != given and not type_.startswith(given + ","):  # Gluon's has a layout
        raise TypeError(f"{where} was compiled as {type_}, but the argument is {given}>")
    shape, strides = list(descriptor.shape), list(descriptor.strides)
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    elements = descriptor.base.numel()
    if min(shape) < 1 or min(strides) < 0 or last >= elements:
        raise ValueError(
            f"{where} has the shape {shape} and the strides {strides}, which reach beyond its "
            f"tensor's {elements} elements"
        )


def words(form: Form, descriptor: object, address: str) -> Iterator[str]:
    """Return the parameters that stand for a descriptor; `address` is its base's."""
    shape, strides = list(descriptor.shape), list(descriptor.strides)
    if "flags" in form:
        yield address
        yield from _integers("<q", [*shape, *strides])
        yield from _integers("<?", [_flag(descriptor, flag) for flag in FLAGS[: form["flags"]]])
    else:
        yield launches.tensor_map(address, _description(form, descriptor, shape, strides))
    yield from _integers("<i", shape)
    yield from _integers("<q", strides)


def _integers(format_: str, values: Sequence[int]) -> Iterator[str]:
    return (launches.value(struct.pack(format_, value)) for value in values)


def _description(
    form: Form, descriptor: object, shape: Sequence[int], strides: Sequence[int]
) -> bytes:
    """Encode a descriptor for csrc/launchers/tensor_map.cc."""
    sizes = list(shape)
    if form["fp4_padded"]:
        sizes[-1] *= 2
    is_tf32 = _flag(descriptor, "round_f32_to_tf32")
    data_type = _TF32 if is_tf32 else _DATA_TYPES[form["elem_type"]]
    rank = len(sizes)
    return struct.pack(
        f"<4I{rank}I{rank}Q{rank - 1}Q",
        *(data_type, form["swizzle"], _flag(descriptor, "padding"), rank),
        *reversed(form["block_size"]),
        *reversed(sizes),
        *(stride * form["elem_size"] for stride in reversed(strides[:-1])),
    )
