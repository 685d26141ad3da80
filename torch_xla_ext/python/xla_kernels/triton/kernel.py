"""Compiled Triton kernels, with everything that a launch needs if Triton is not installed."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import json
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from xla_kernels.launch import digest_of
from xla_kernels.triton import descriptors

# struct formats of the types in a compiled signature.
_FORMATS = {
    **{"i1": "<i", "i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q"},
    **{"u1": "<I", "u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q"},
    **{"fp16": "<e", "fp32": "<f", "f32": "<f", "fp64": "<d"},
}
_ALIGNMENT = 16  # the alignment in bytes and the divisor that Triton specializes for
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class TritonKernel:
    """A compiled kernel, made by `compile_triton_kernel`.

    Attributes:
        name: the function's name in `cubin`.
        cubin: the binary, for GPUs of `capability` (90 for an H200).
        signature: the parameters' names and Triton types; a "constexpr" is compiled in. The
            elements of a tuple are separate parameters, with names such as "sizes.0".
        constants: the values that are compiled in, as text.
        multiples_of_16: the integer parameters that must be multiples of 16.
        num_warps, num_ctas, shared, cluster, cooperative, dependent: how it is launched; `shared`
            is in bytes.
        scratch: bytes of global memory that each block receives.
        scratch_pointers: how many pointers to such memory follow its parameters.
        descriptors: how tensor descriptors are passed to it, by name.
    """

    name: str
    cubin: bytes
    capability: int
    signature: dict[str, str]
    constants: dict[str, str]
    multiples_of_16: tuple[str, ...]
    num_warps: int
    shared: int
    cluster: tuple[int, int, int]
    cooperative: bool
    dependent: bool
    scratch: int
    scratch_pointers: int
    descriptors: Mapping[str, descriptors.Form] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def digest(self) -> str:
        return digest_of(self.name, self.cubin)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the kernel to a file, for machines without Triton."""
        fields = dataclasses.asdict(self) | {"cubin": base64.b64encode(self.cubin).decode()}
        Path(path).write_text(json.dumps(fields))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TritonKernel:
        """Read a file written by `save`."""
        fields = json.loads(Path(path).read_text())
        fields["cubin"] = base64.b64decode(fields["cubin"])
        for name in ("cluster", "multiples_of_16"):
            fields[name] = tuple(fields[name])
        return cls(**fields)

    def check(self, values: Mapping[str, object]) -> None:
        """Refuse arguments that the kernel was not compiled for.

        Raises:
            TypeError, ValueError: the message has the parameter's name.
        """
        for name, type_ in self.signature.items():
            value = part_of(values, name)
            if type_ == "constexpr":
                if _constant(value) != self.constants[name]:
                    raise ValueError(
                        f"{self.name}: {name} was compiled as {self.constants[name]}, but is "
                        f"{_constant(value)}"
                    )
            elif type_.startswith("*"):
                given = getattr(value, "dtype", value)
                if not isinstance(given, torch.dtype) or type_.lstrip("*k") != _dtype(given):
                    raise TypeError(f"{self.name}: {name} was compiled as {type_}, but is {given}")
            elif type_.startswith(descriptors.TYPE):
                dtype = _dtype(value.base.dtype) if descriptors.is_descriptor(value) else None
                descriptors.check(self.name, name, type_, value, dtype)
            elif name in self.multiples_of_16 and value % _ALIGNMENT:
                raise ValueError(
                    f"{self.name}: {name} was compiled for multiples of 16, but is {value}"
                )

    def packed(self, name: str, value: object) -> bytes:
        """Pack a number with the width for which the kernel was compiled."""
        type_ = self.signature[name]
        try:
            if type_ == "bf16":
                return _bfloat16(float(value))
            return struct.pack(_FORMATS[type_], value)
        except KeyError:
            raise NotImplementedError(
                f"{self.name}: {name} is a {type_}: no such parameter can be passed"
            ) from None
        except struct.error as error:
            raise TypeError(f"{self.name}: {name} is a {type_}, not {value!r}: {error}") from None


def part_of(values: Mapping[str, object], path: str) -> object:
    """Return the value at a path: ``sizes.0`` is the first element of the tuple `sizes`."""
    name, *indices = path.split(".")
    value = values[name]
    for index in indices:
        value = value[int(index)]
    return value


def replaced(value: object, replace: Callable[[str, object], object], path: str) -> object:
    """Return a value with each element x of its tuples replaced by `replace(path, x)`.

    In a descriptor, the tensor is replaced, and the path is the descriptor's.
    """
    if descriptors.is_descriptor(value):
        return descriptors.with_base(value, replace(path, value.base))
    if not isinstance(value, tuple):
        return replace(path, value)
    items = [replaced(item, replace, f"{path}.{i}") for i, item in enumerate(value)]
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def tensors_in(values: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Return the tensors among the values and in their tuples, by path."""
    found: dict[str, torch.Tensor] = {}

    def add(path: str, value: object) -> object:
        if isinstance(value, torch.Tensor):
            found[path] = value
        return value

    for name, value in values.items():
        replaced(value, add, name)
    return found


def _bfloat16(value: float) -> bytes:
    return torch.tensor(value, dtype=torch.bfloat16).view(torch.int16).numpy().tobytes()


def _constant(value: object) -> str:
    return str(getattr(value, "value", value))  # of a tl.constexpr


# Triton's names of dtypes that are not torch's names with another prefix.
_DTYPES = {
    torch.bool: "i1",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
}


def _dtype(dtype: torch.dtype) -> str:
    """Return Triton's name of a dtype: ``fp32`` for torch.float32, ``u8`` for torch.uint8."""
    name = str(dtype).removeprefix("torch.")
    for long, short in (("float", "fp"), ("uint", "u"), ("int", "i")):
        name = name.replace(long, short)
    return _DTYPES.get(dtype, name)


class Driver:
    """A Triton driver that only reports a compilation target, without torch for CUDA."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> str:
        return f"torch_xla_ext sm_{self._target.arch}"  # one cache of Triton for each

    def get_current_stream(self, device: object) -> int:
        return 0

    def get_current_target(self) -> object:
        return self._target


@contextlib.contextmanager
def compiling_for(capability: int) -> Iterator[None]:
    """In a block, make Triton compile for GPUs of this compute capability."""
    from triton.runtime import driver

    with _lock:
        before = driver.active
        driver.set_active(Driver(capability))
        try:
            yield
        finally:
            driver.set_active(before)


def compile_jit_function(
    kernel: object, values: Mapping[str, object], options: Mapping[str, object], capability: int
) -> TritonKernel:
    """Compile a triton.JITFunction for arguments like `values`, by the parameters' names."""
    from triton.runtime.jit import MockTensor

    class Aligned(MockTensor):
        """A tensor's stand-in, aligned to 16 bytes, as XLA's buffers are."""

    def mocked(path: str, value: object) -> object:
        return Aligned(value.dtype) if isinstance(value, torch.Tensor) else value

    arguments = [replaced(values[name], mocked, name) for name in kernel.arg_names]
    with compiling_for(capability):
        compiled = kernel.run(*arguments, grid=None, warmup=True, **options)
    return _read(compiled, values)


def _read(compiled: object, values: Mapping[str, object]) -> TritonKernel:
    import triton

    metadata, source = compiled.metadata, compiled.src
    signature: dict[str, str] = {}

    def add(path: str, type_: object) -> None:
        signature[path] = str(type_)

    for name, type_ in source.signature.items():
        replaced(tuple(type_) if isinstance(type_, list) else type_, add, name)
    known = "constexpr", "bf16", *_FORMATS
    for name, type_ in signature.items():
        if type_ not in known and not type_.startswith(("*", descriptors.TYPE)):
            raise NotImplementedError(
                f"{metadata.name}: {name} is a {type_}: no such parameter can be passed"
            )
    names = list(source.signature)
    paths = {
        ".".join([names[path[0]], *map(str, path[1:])]): attributes
        for path, attributes in source.attrs.items()
    }
    multiples = [
        path
        for path, attributes in paths.items()
        if ["tt.divisibility", _ALIGNMENT] in [list(attribute) for attribute in attributes]
        and signature[path][0] != "*"
    ]
    # Triton 3.5 added one for profiling.
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return TritonKernel(
        name=metadata.name,
        cubin=compiled.asm["cubin"],
        capability=metadata.target.arch,
        signature=signature,
        constants={
            n: _constant(part_of(values, n))
            for n, type_ in signature.items()
            if type_ == "constexpr"
        },
        multiples_of_16=tuple(multiples),
        num_warps=metadata.num_warps,
        shared=metadata.shared,
        # Triton 3.6 no longer has clusters of several dimensions.
        cluster=tuple(getattr(metadata, "cluster_dims", (metadata.num_ctas, 1, 1))),
        cooperative=bool(metadata.launch_cooperative_grid),
        dependent=bool(getattr(metadata, "launch_pdl", False)),
        scratch=metadata.global_scratch_size,
        scratch_pointers=1 if version < (3, 5) else 2,
        descriptors=descriptors.forms(
            metadata.name, signature, getattr(metadata, "tensordesc_meta", None)
        ),
    )
