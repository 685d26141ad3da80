"""Find a kernel's machine code: in compiled source, a file, or a saved kernel."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import math
import os
import string
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from xla_kernels import launch as launches
from xla_kernels.cuda_source import binary, compiler, cpp_types, nvrtc
from xla_kernels.cuda_source.compiler import Instance, Source
from xla_kernels.cuda_source.cpp_types import Argument, Parameter, label

_FORMAT = "torch_xla_ext CUDA kernel 1"
# Names the architecture for which calls on the CPU are checked; if empty, the source is not
# checked.
CHECK_VARIABLE = "TORCH_XLA_EXT_CHECK_KERNELS"
# PTX, for which the compiler checks all of the source, and inline assembly may be for newer GPUs.
_CHECKED = "compute_90a"

# The target of compilation: a GPU's compute capability, an architecture ("sm_90a"), or None for
# checks without a GPU.
For = int | str | None


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel's machine code and parameters.

    Attributes:
        module: a cubin, a fatbin, or the text of PTX.
        function: the kernel's name in the module.
        parameters: the parameters, with their names, if known.
        sizes: the parameters' sizes in bytes; None if the module does not contain them.
        most_threads, most_shared: a block's most threads and bytes of shared memory, if known.
    """

    module: bytes
    function: str
    parameters: tuple[Parameter, ...]
    sizes: tuple[int, ...] | None
    most_threads: int | None = dataclasses.field(default=None, kw_only=True)
    most_shared: int | None = dataclasses.field(default=None, kw_only=True)

    @functools.cached_property
    def digest(self) -> str:
        return launches.digest_of(self.function, self.module)

    def check(self, where: str, launch: launches.Launch) -> None:
        """Refuse a launch that the driver would refuse; raise ValueError."""
        threads, most = math.prod(launch.block), self.most_threads
        if most is not None and threads > most:
            raise ValueError(
                f"{where}: block must have at most {most} threads, as its __launch_bounds__ "
                f"say, but is {launch.block}"
            )
        if self.most_shared is not None and launch.shared > self.most_shared:
            raise ValueError(
                f"{where}: shared_bytes must be at most {self.most_shared}, what a block can have, "
                f"but is {launch.shared}"
            )

    def words(self, where: str, arguments: Sequence[Argument]) -> list[str]:
        """Return the words of a launch with these arguments.

        Raises:
            TypeError, ValueError: an argument does not fit its parameter.
        """
        sizes = self.sizes or (None,) * len(self.parameters)
        return [
            word
            for i, (argument, size) in enumerate(zip(arguments, sizes, strict=True))
            for word in self.parameters[i].words(
                f"{where}: {label(self.parameters, i)}", argument, size
            )
        ]


class Code(Protocol):
    """A kernel's code for all GPUs."""

    def declared(self) -> tuple[Parameter, ...] | None:
        """Return the parameters if they are known without a compiler, else None."""

    def parameters(self, name: str, target: For) -> tuple[Parameter, ...] | None:
        """Return the parameters of the kernel with this name expression, to bind arguments.

        None if they are unknown, which only happens without a GPU.
        """

    def kernel(self, name: str, target: For, arguments: Sequence[Argument]) -> Kernel | None:
        """Return the kernel for these arguments; None if it cannot be found without a GPU."""


class _CppCode:
    """Base class of source and saved code, in which name expressions identify kernels."""

    def parameters(self, name: str, target: For) -> tuple[Parameter, ...] | None:
        kernel = self.kernel(name, target)
        return kernel.parameters if kernel is not None else self.declared()


class SourceCode(_CppCode):
    """C++ source, which is compiled for the GPU at the first call."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._kernels: dict[tuple[str, str], Kernel] = {}
        self._instances: dict[tuple[str, str], Instance] = {}
        self._architectures: dict[int, str] = {}
        self._is_unchecked = False

    def with_macros(self, macros: Mapping[str, object]) -> SourceCode:
        """Return the same source with these macros defined."""
        if not macros:
            return self
        defined = [f"-D{name}={_macro(value)}" for name, value in macros.items()]
        options = (*self.source.options, *defined)
        return SourceCode(dataclasses.replace(self.source, options=options))

    def declared(self) -> tuple[Parameter, ...] | None:
        return cpp_types.parameters_in(self.source.text, self.source.name)

    def instance(self, name: str, architecture: str) -> Instance:
        key = name, architecture
        with self._lock:
            if key not in self._instances:
                source = dataclasses.replace(self.source, name=name)
                self._instances[key] = compiler.compile_instance(source, architecture)
            return self._instances[key]

    def kernel(
        self, name: str, target: For, arguments: Sequence[Argument] | None = None
    ) -> Kernel | None:
        if target is None:
            return self._kernel_to_check(name)
        architecture = target if isinstance(target, str) else self._architecture(target)
        if (name, architecture) not in self._kernels:
            instance = self.instance(name, architecture)
            self._kernels[name, architecture] = _kernel(instance, self.declared())
        return self._kernels[name, architecture]

    def _architecture(self, capability: int) -> str:
        if capability not in self._architectures:
            supported = nvrtc.find().architectures
            self._architectures[capability] = compiler.architecture_for(capability, supported)
        return self._architectures[capability]

    def _kernel_to_check(self, name: str) -> Kernel | None:
        """Return the kernel; None if this machine cannot compile it."""
        architecture = os.environ.get(CHECK_VARIABLE, _CHECKED)
        if not architecture or self._is_unchecked:
            return None
        try:
            return self.kernel(name, architecture)
        except nvrtc.MissingError:
            self._is_unchecked = True
        except nvrtc.CompilationError as error:
            if compiler.MISSING_HEADER not in str(error):
                raise
            self._is_unchecked = True
            warnings.warn(f"its source is not checked on the CPU: {error}", stacklevel=2)
        return None


class SavedCode(_CppCode):
    """Compiled instances, from a cubin, PTX or a file that `save` wrote."""

    def __init__(
        self,
        file: Path,
        instances: Mapping[tuple[str, str], Instance],
        declared: tuple[Parameter, ...] | None,
    ) -> None:
        self.file = file
        self.instances = instances
        self._declared = declared
        self._kernels: dict[tuple[str, int | None], Kernel] = {}

    def __str__(self) -> str:
        return "from a file"

    def declared(self) -> tuple[Parameter, ...] | None:
        return self._declared

    def kernel(self, name: str, target: For, arguments: Sequence[Argument] | None = None) -> Kernel:
        capability = capability_of(target) if isinstance(target, str) else target
        key = name, capability
        if key not in self._kernels:
            self._kernels[key] = _kernel(self._instance(name, capability), self._declared)
        return self._kernels[key]

    def _instance(self, name: str, capability: int | None) -> Instance:
        of_name = {arch: each for (other, arch), each in self.instances.items() if other == name}
        if not of_name:
            names = sorted({other for other, _ in self.instances})
            raise ValueError(f"{self.file} has no kernel {name!r}; it has {', '.join(names)}")
        if capability is None:
            return next(iter(of_name.values()))
        fitting = [arch for arch in of_name if _runs_on(arch, capability)]
        if not fitting:
            raise RuntimeError(
                f"{self.file} has {name!r} for {', '.join(sorted(of_name))}, but the GPU has "
                f"compute capability {capability}; compile the kernel for sm_{capability}, too"
            )
        return of_name[max(fitting, key=lambda arch: _preference(arch, capability))]


def _parts(architecture: str) -> tuple[str, int, str]:
    match = compiler.ARCHITECTURE.fullmatch(architecture)
    if match is None:
        raise ValueError(f"architecture {architecture!r} is not of the form sm_90 or compute_90")
    kind, number, suffix = match.groups()
    return kind, int(number), suffix


def capability_of(architecture: str) -> int:
    """Return the compute capability of an architecture: 90 for "sm_90a".

    Raises:
        ValueError: the name is not an architecture.
    """
    return _parts(architecture)[1]


def _runs_on(architecture: str, capability: int) -> bool:
    """Return whether a GPU with this compute capability runs code for this architecture."""
    if architecture == "any":
        return True  # a fatbin, which the driver searches
    kind, number, suffix = _parts(architecture)
    if suffix == "a":
        return number == capability
    same_family = number // 10 == capability // 10
    if kind == "sm" or suffix == "f":
        return same_family and number <= capability
    return number <= capability


def _preference(architecture: str, capability: int) -> tuple[bool, int, bool]:
    if architecture == "any":
        return False, 0, False
    kind, number, suffix = _parts(architecture)
    return kind == "sm", number, suffix == "a"


def _kernel(instance: Instance, declared: tuple[Parameter, ...] | None) -> Kernel:
    """Return a kernel with the compiler's types, and names from a matching declaration."""
    read = binary.read(instance.module)
    sizes = read.kernels.get(instance.kernel)
    types = instance.types
    if types is None:
        parameters = declared or ()
    elif declared is not None and len(declared) == len(types):
        parameters = tuple(
            Parameter(type_, parameter.name)
            for type_, parameter in zip(types, declared, strict=True)
        )
    else:
        parameters = tuple(map(Parameter, types))
    if sizes is not None and len(sizes) != len(parameters):
        raise ValueError(
            f"kernel {instance.kernel} has {len(sizes)} parameters in the module, but "
            f"{len(parameters)} are declared"
        )
    return Kernel(
        *(instance.module, instance.kernel, parameters, sizes),
        most_threads=read.most_threads.get(instance.kernel),
        most_shared=read.most_shared,
    )


def save(
    path: Path,
    instances: Mapping[tuple[str, str], Instance],
    declared: tuple[Parameter, ...] | None,
) -> None:
    """Write compiled instances to a file, by name and architecture."""
    fields = {
        "format": _FORMAT,
        "parameters": declared and [[p.type, p.name] for p in declared],
        "instances": [
            {
                "name": name,
                "architecture": architecture,
                "kernel": instance.kernel,
                "types": instance.types,
                "module": base64.b64encode(instance.module).decode(),
            }
            for (name, architecture), instance in instances.items()
        ],
    }
    path.write_text(json.dumps(fields))


def load(path: Path, name: str | None, prototype: str | None) -> tuple[str, SavedCode]:
    """Read a file that `save` wrote, a cubin, a fatbin or PTX.

    Args:
        name: the kernel's name; None if the file has only one kernel.
        prototype: the declaration of a kernel whose name does not contain its types (extern "C").

    Returns:
        The kernel's name, and the code.

    Raises:
        ValueError: the file has another format, or lacks the kernel.
    """
    content = path.read_bytes()
    declared = cpp_types.parse_prototype(prototype) if prototype is not None else None
    if content.startswith(b"{"):
        return _load_saved(path, content, name, declared)
    try:
        read = binary.read(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    function = _function(path, read, name)
    types = cpp_types.types_of(function)
    if types is None:
        if declared is None:
            raise ValueError(
                f"{path}: the name {function!r} does not contain the parameters' types; "
                f'pass prototype="void {function}(float a, const float* x, …)"'
            )
        types = tuple(parameter.type for parameter in declared)
    elif declared is not None and len(declared) != len(types):
        raise ValueError(
            f"{path}: the prototype has {len(declared)} parameters, but {function} has "
            f"{len(types)}: {', '.join(types)}"
        )
    name = name or function
    instance = Instance(content, function, types)
    _kernel(instance, declared)  # checks the number of parameters
    return name, SavedCode(path, {(name, read.architecture): instance}, declared)


def _load_saved(
    path: Path, content: bytes, name: str | None, declared: tuple[Parameter, ...] | None
) -> tuple[str, SavedCode]:
    try:
        fields = json.loads(content)
        if fields["format"] != _FORMAT:
            raise ValueError(f"its format is {fields['format']!r}, not {_FORMAT!r}")
        instances = {
            (each["name"], each["architecture"]): Instance(
                base64.b64decode(each["module"]),
                each["kernel"],
                None if each["types"] is None else tuple(each["types"]),
            )
            for each in fields["instances"]
        }
        saved = fields["parameters"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a saved kernel: {error}") from None
    if declared is None and saved is not None:
        declared = tuple(Parameter(type_, each) for type_, each in saved)
    names = sorted({each for each, _ in instances})
    if name is None:
        if len(names) != 1:
            raise ValueError(f"{path} has several kernels; name one of {', '.join(names)}")
        name = names[0]
    return name, SavedCode(path, instances, declared)


def _function(path: Path, read: binary.Binary, name: str | None) -> str:
    """Find a kernel by its C++ name or its name in the module, and return the latter."""
    if read.architecture == "any":
        if name is None:
            raise ValueError(f"{path}: pass the kernel's name in the fatbin")
        return name
    functions = list(read.kernels)
    if name is None and len(functions) == 1:
        return functions[0]
    if name in functions:
        return name
    plain = {each: (cpp_types.demangled(each) or each) for each in functions}
    matching = [each for each, text in plain.items() if name and _is_named(text, name)]
    if len(matching) == 1:
        return matching[0]
    raise ValueError(
        f"{path}: {'several kernels are' if matching else 'no kernel is'} named {name!r}; it has "
        f"{', '.join(plain.values()) or 'none'}"
    )


def _is_named(text: str, name: str) -> bool:
    """Return whether `name` is the name in this demangled text, which may have a result type."""
    return text.startswith(f"{name}(") or text.removeprefix("void ").startswith(f"{name}(")


def _macro(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


def name_fields(name: str) -> list[str]:
    """Return the fields of a kernel's name: the names in braces."""
    return [field for _, field, _, _ in string.Formatter().parse(name) if field is not None]


def all_names(name: str, options: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the name expressions of a name with fields: ``f<{T}>`` for each T."""
    names = [name]
    for field, values in options.items():
        names = [
            each.replace(f"{{{field}}}", value)
            for each in names
            for value in (values if f"{{{field}}}" in each else [""])
        ]
    return names
