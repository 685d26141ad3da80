"""cuda_kernel, which makes a CUDA kernel from source, callable with XLA tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from xla_kernels.cuda_source import kernel_checks, library_kernels
from xla_kernels.cuda_source import machine_code as codes
from xla_kernels.cuda_source.compiler import Instance, Source
from xla_kernels.cuda_source.configuration import Configuration, Number
from xla_kernels.cuda_source.kernel_calls import Calls, Outputs
from xla_kernels.cuda_source.kernel_reference import Reference
from xla_kernels.cuda_source.kernel_signature import Signature
from xla_kernels.cuda_source.machine_code import SourceCode
from xla_kernels.cuda_source.python_code import PythonCode
from xla_kernels.launch import Grid
from xla_kernels.plugin.driver import compute_capability

# The architecture of H100 and H200.
_DEFAULT = "sm_90a"
# A kernel of CuPy, Numba or cuTile, which need not be installed.
LibraryObject = object


def cuda_kernel(
    source: str | os.PathLike[str] | LibraryObject,
    name: str | None = None,
    *,
    options: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    signature: str | None = None,
    parameters: str = "",
    arguments: str | Sequence[str] | None = None,
    grid: Grid | None = None,
    block: Grid | None = None,
    shared_bytes: Number = 0,
    cluster: int | Sequence[int] = 1,
    cooperative: bool = False,
    dependent: bool = False,
    configs: Sequence[Mapping[str, object]] = (),
    reference: Reference | None = None,
) -> CudaKernel:
    """Make a callable from a CUDA kernel's source text, without nvcc.

    ::

        square = torch_xla_ext.cuda_kernel('''
            __global__ void square(const float* x, float* out, int n) {
              int i = blockIdx.x * blockDim.x + threadIdx.x;
              if (i < n) out[i] = x[i] * x[i];
            }''', "square", reference=lambda x, n: x * x)
        (y,) = square[(n + 255) // 256, 256](x, n, outputs=[x])

    On a GPU, NVRTC compiles the kernel for GPU 0 when a call is first traced. The machine code is
    cached on disk ($TORCH_XLA_EXT_KERNEL_CACHE, by default ~/.cache/torch_xla_ext/kernels), by the
    content of the source and its headers, the options, the architecture and NVRTC. The XLA program
    contains the machine code, and needs neither NVRTC nor the source to run.

    With a signature, calls need no `outputs`, and the kernel can be the target of
    `define_operator`, and is called as ``square(x)`` if `grid` and `block` are given here.

    Args:
        source: CUDA C++, or the path of a file with it (a Path, or text that ends with .cu or
            .cuh). `extern "C"` is not needed. Or a kernel of another library: a cupy.RawKernel, or
            a function with @numba.cuda.jit or cuTile's @ct.kernel; Numba and cuTile compile their
            functions for the types of each call's arguments.
        name: the `__global__` function, or an expression that names it: ``"ns::scale<float, 4>"``;
            None for a kernel of another library.
            With a signature, ``"scale<{T}>"`` has the type of the dtype variable T, and
            ``"scale<{n}>"`` the size or parameter n.
        options: further options of NVRTC, such as ``"--use_fast_math"`` or ``"-DBLOCK=128"``.
        include_dirs: folders of headers. CUDA's own are found in NVIDIA's pip packages, or in a
            toolkit.
        signature: operands and results as in kernel.h (docs/kernels.md), perhaps with a name:
            ``"(x: T[n]) -> (out: T[n]) where T: F32 | F16"``. A result without a dtype,
            ``-> (cache)``, is written to that operand's buffer.
        parameters: with a signature, the other arguments of a call: ``"eps: f32, causal: bool"``.
        arguments: with a signature, the arguments for the kernel's parameters, in order, as a list
            or a space-separated str: names of operands, results, parameters and sizes, ``x.size``
            for a number of elements, and ``none`` for a null pointer. By default the parameters'
            own names.
        grid, block: one to three numbers of blocks and of threads, or a function that computes
            them from a dict of the arguments: numbers, sizes, and ArrayType for tensors.
        shared_bytes: the bytes of a block's dynamic shared memory, or a function as for `grid`.
        cluster: the numbers of blocks in a cluster, one to three.
        cooperative: whether blocks may synchronize with each other (grid.sync()).
        dependent: whether the kernel may start before the previous one ends (programmatic dependent
            launch); the kernel must then wait for it (griddepcontrol.wait).
        configs: with a signature, configurations from which the fastest is chosen for each set of
            shapes on the GPU, as by triton.autotune: dicts with the same keys, ``[{"TILE": 64},
            {"TILE": 128}]``. A value replaces the field ``{TILE}`` of `name`, or, if there is no
            such field, defines a macro for the source; functions for grid, block and shared_bytes
            read it as ``call["TILE"]``. The configurations are timed when a call is first traced,
            on separate arrays; the choice is kept on disk beside the compiled kernels.
        reference: computes the results on the CPU, in place of the kernel. It receives the
            arguments of the call and returns one tensor or several.

    Raises:
        FileNotFoundError: there is no such file.
        TypeError, ValueError: a wrong argument.
    """
    configuration = {"block": block, "cooperative": cooperative}
    if isinstance(source, (str, os.PathLike)):
        if name is None:
            raise TypeError("cuda_kernel: pass the name of the `__global__` function in the source")
        text, file = _read(source)
        folders = tuple(Path(folder).resolve() for folder in include_dirs)
        code: codes.Code = SourceCode(Source(text, file, name, tuple(options), folders))
    else:
        kernel = library_kernels.read(source)
        if name is not None or options or include_dirs:
            raise TypeError(
                f"cuda_kernel {kernel.name!r}: name, options and include_dirs are for source text"
            )
        if block is not None and "block" in kernel.fixed:
            raise TypeError(
                f"cuda_kernel {kernel.name!r}: its compiler chooses the block; leave it out"
            )
        name, code = kernel.name, kernel.code
        configuration |= kernel.fixed
    return CudaKernel(
        name,
        code,
        signature=signature,
        parameters=parameters,
        arguments=arguments,
        configuration=Configuration(
            name,
            grid,
            shared_bytes=shared_bytes,
            cluster=cluster,
            dependent=dependent,
            **configuration,
        ),
        reference=reference,
        configs=configs,
    )


def _read(source: str | os.PathLike[str]) -> tuple[str, Path | None]:
    if isinstance(source, str) and ("\n" in source or not source.endswith((".cu", ".cuh"))):
        return source, None
    file = Path(source).resolve()
    return file.read_text(), file


class CudaKernel:
    """A CUDA kernel, made by `cuda_kernel` or `CudaKernel.from_file`.

    ``kernel[grid, block, shared_bytes](…)`` calls it, or with a signature, grid and block,
    ``kernel(…)``.

    Attributes:
        name: the kernel's name, or the expression that names it.
        signature: the signature, or None.
    """

    def __init__(
        self,
        name: str,
        code: codes.Code,
        *,
        signature: str | None,
        parameters: str,
        arguments: str | Sequence[str] | None,
        configuration: Configuration,
        reference: Reference | None,
        configs: Sequence[Mapping[str, object]] = (),
    ) -> None:
        self.name = name
        self.signature: Signature | None = None
        if signature is not None:
            self.signature = Signature.parse(name, signature, parameters, arguments)
            if self.signature.schema.has_layouts and isinstance(code, PythonCode):
                raise ValueError(
                    f"cuda_kernel {name!r}: a kernel of {code.library} receives row-major arrays: "
                    "its signature must not have layouts"
                )
        configs = _checked_configs(name, configs, self.signature)
        self.calls = Calls(name, code, self.signature, configuration, reference, configs)
        if signature is None:
            if parameters or arguments is not None:
                raise TypeError(f"{self._where}: parameters and arguments require a signature")
            if fields := codes.name_fields(name):
                raise TypeError(f"{self._where}: {{{fields[0]}}} in the name requires a signature")

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        name: str | None = None,
        *,
        prototype: str | None = None,
        signature: str | None = None,
        parameters: str = "",
        arguments: str | Sequence[str] | None = None,
        grid: Grid | None = None,
        block: Grid | None = None,
        shared_bytes: Number = 0,
        cluster: int | Sequence[int] = 1,
        cooperative: bool = False,
        dependent: bool = False,
        configs: Sequence[Mapping[str, object]] = (),
        reference: Reference | None = None,
    ) -> CudaKernel:
        """Make a callable from a compiled kernel: a file written by `save`, a cubin or PTX.

        Args:
            path: the file.
            name: the kernel's name, as in C++ or in the file; None for a file with one kernel.
            prototype: the kernel's declaration, ``"void axpy(float a, const float* x, float* y)"``,
                for names of arguments, and for `extern "C"` functions, whose types the file lacks.
            signature: this and the following arguments are as in `cuda_kernel`.

        Raises:
            FileNotFoundError: there is no such file.
            TypeError, ValueError: an argument is wrong, or the file has no such kernel.
        """
        name, code = codes.load(Path(path), name, prototype)
        if macros := _macros(name, configs):
            raise ValueError(
                f"cuda_kernel {name!r}: a compiled kernel has no macros: {macros[0]} of its "
                f"configs must be in its name, as in f<{{{macros[0]}}}>"
            )
        return cls(
            name,
            code,
            signature=signature,
            parameters=parameters,
            arguments=arguments,
            configuration=Configuration(
                name, grid, block, shared_bytes, cluster, cooperative, dependent
            ),
            reference=reference,
            configs=configs,
        )

    def check(self, *args: object, architectures: str | Sequence[str] | None = None) -> None:
        """Check the kernel without a GPU: its source, parameter types and launch configuration.

        With a signature, this compiles the source, compares the types of the kernel's parameters
        with all dtypes of the signature, calls `grid`, `block` and `shared_bytes`, and checks their
        limits. Without `args`, it tries several sizes and numbers that the signature allows, and
        raises an error if all fail. Without a signature, it compiles the source, and checks `grid`
        and `block` if they are numbers.

        Each call on the CPU with new shapes is checked in this way, too, if NVRTC is installed.

        Args:
            args: for a kernel with a signature, the arguments of a call: tensors on any device,
                including meta, and numbers.
            architectures: as for `save`; by default GPU 0's, or "sm_90a" without a GPU.

        Raises:
            CompilationError: the source does not compile; with the compiler's messages.
            TypeError, ValueError: as a call would raise.
            ImportError: NVRTC is missing.
        """
        targets = [_this_or(_DEFAULT)]
        if architectures is not None:
            targets = [architectures] if isinstance(architectures, str) else architectures
            if not isinstance(targets, (list, tuple)) or not targets:
                raise TypeError(
                    f"{self._where}: architectures must be a str such as 'sm_90a', or a list of "
                    f"them that is not empty, but is {architectures!r}"
                )
        kernel_checks.check(self.calls.variants, self.calls.configuration, args, targets)

    def compile(
        self, architecture: str | None = None, *, instances: Sequence[str] | None = None
    ) -> dict[str, bytes]:
        """Compile the kernel now, even without a GPU.

        Args:
            architecture: "sm_90a" for a cubin, "compute_90" for PTX; None for GPU 0.
            instances: for a name with fields, the name expressions; by default one for each dtype.

        Returns:
            The modules by name expression.

        Raises:
            CompilationError: the source does not compile; with the compiler's messages.
            TypeError: the types of the kernel's parameters do not match the signature.
            ValueError: NVRTC does not compile for this architecture.
            RuntimeError: NVRTC is missing, or there is no GPU.
        """
        code = self._source_code("compile")
        target = compute_capability() if architecture is None else architecture
        modules = {name: code.kernel(name, target).module for name in self._instances(instances)}
        named = instances is not None
        kernel_checks.check_types(self.calls.variants, target, list(modules), named)
        return modules

    def save(
        self,
        path: str | os.PathLike[str],
        architectures: Sequence[str],
        *,
        instances: Sequence[str] | None = None,
    ) -> None:
        """Compile the kernel for several architectures, and write a file for `from_file`.

        Machines that read it need neither NVRTC nor headers.

        Args:
            path: the file.
            architectures, instances: as in `compile`.

        Raises:
            As `compile`.
        """
        code = self._source_code("save")
        if macros := _macros(self.name, [variant.config for variant in self.calls.variants.all]):
            raise ValueError(
                f"{self._where}: a saved kernel has no macros: {macros[0]} of its configs must be "
                f"in its name, as in f<{{{macros[0]}}}>"
            )
        names = self._instances(instances)
        compiled: dict[tuple[str, str], Instance] = {
            (name, architecture): code.instance(name, architecture)
            for name in names
            for architecture in architectures
        }
        for architecture in architectures:
            kernel_checks.check_types(
                self.calls.variants, architecture, names, named=instances is not None
            )
        codes.save(Path(path), compiled, code.declared())

    def __getitem__(self, key: object) -> Callable[..., list[torch.Tensor]]:
        configuration = self.calls.configuration.at(key)

        def call(
            *args: object,
            outputs: Outputs | None = None,
            aliases: Sequence[str | int] | None = None,
            has_side_effect: bool = False,
            sharding_rule: str | None = None,
        ) -> list[torch.Tensor]:
            """Call the kernel, as part of the XLA program.

            Args:
                args: the arguments of the kernel's parameters, in order without the outputs: XLA
                    tensors, at least one, for pointers (None for a null pointer), numbers, and
                    bytes for structs. The kernel receives row-major tensors.
                outputs: descriptions of the results, each a tensor or (shape, dtype): for the
                    kernel's non-const pointers, in order, or by the parameters' names. The kernel
                    receives them uninitialized.
                aliases: the arguments to whose tensors the kernel writes, by the parameters' names
                    or by position. XLA copies a tensor that is also used elsewhere.
                has_side_effect: as in `custom_call`.
                sharding_rule: the dimensions of sharded tensors that devices may share, as in
                    `define_operator`: of the tensors among `args`, and of the call's results. Each
                    device launches the kernel for its parts, for which functions for grid, block
                    and shared_bytes are called again. Numbers are the same on all devices; pass a
                    number that depends on a divided size as a function of the list of arguments,
                    with ArrayType for tensors: ``lambda args: args[0].size``. Without it, sharded
                    tensors are gathered. References use PyTorch operations, which need no rule.

            Returns:
                The results, followed by the new values of the tensors that `aliases` names. They
                have no derivative.
            """
            return self.calls.call(
                configuration, args, outputs, aliases, has_side_effect, sharding_rule
            )

        return call

    def __call__(self, *args: object, sharding_rule: str | None = None) -> list[torch.Tensor]:
        """Call a kernel that has a signature, grid and block.

        Args:
            args: the operands, then the parameters, in the signature's order.
            sharding_rule: as for ``kernel[grid, block](…)``.

        Returns:
            The results.
        """
        if self.signature is None:
            raise TypeError(
                f"{self._where}: call it as kernel[grid, block](…), or give it a signature"
            )
        return self.calls.call(self.calls.configuration, args, None, None, False, sharding_rule)

    def __str__(self) -> str:
        return self.signature.schema.target if self.signature is not None else self.name

    @property
    def _where(self) -> str:
        return self.calls.where

    def _source_code(self, what: str) -> SourceCode:
        if not isinstance(self.calls.code, SourceCode):
            raise TypeError(
                f"{self._where}: {what} needs the source, but the kernel is {self.calls.code}"
            )
        return self.calls.code

    def _config_options(self) -> dict[str, list[str]]:
        """Return the possible texts of the name's fields, from the configurations."""
        configs = [variant.config for variant in self.calls.variants.all]
        return {
            key: list(dict.fromkeys(str(_number(config[key])) for config in configs))
            for key in configs[0]
        }

    def _instances(self, given: Sequence[str] | None) -> list[str]:
        if given is not None:
            return list(given)
        if not (fields := codes.name_fields(self.name)):
            return [self.name]
        options = {**self.signature.type_options(), **self._config_options()}
        if unknown := [field for field in fields if field not in options]:
            raise TypeError(
                f"{self._where}: {{{unknown[0]}}} is not a dtype: name the instances, as in "
                f'instances=["scale<128>"]'
            )
        return codes.all_names(self.name, {field: options[field] for field in fields})


def _checked_configs(
    name: str, configs: Sequence[Mapping[str, object]], signature: Signature | None
) -> list[Mapping[str, object]]:
    where = f"cuda_kernel {name!r}: configs"
    if isinstance(configs, (str, Mapping)) or not isinstance(configs, Sequence):
        raise TypeError(f"{where} must be a list of dicts, but is a {type(configs).__name__}")
    if not configs:
        return []
    if signature is None:
        raise TypeError(f"{where} require a signature")
    known = {each.name for each in (*signature.schema.arguments, *signature.schema.parameters)}
    known |= {dim.name for each in signature.schema.arguments for dim in each.dims}
    known |= set(signature.schema.variables)
    for config in configs:
        if not isinstance(config, Mapping):
            raise TypeError(f"{where} must be dicts, but one is a {type(config).__name__}")
        if set(config) != set(configs[0]):
            raise ValueError(
                f"{where} must have the same names, but have {', '.join(map(str, configs[0]))} and "
                f"{', '.join(map(str, config))}"
            )
        for key, value in config.items():
            if not isinstance(key, str) or not key.isidentifier() or key in known:
                raise ValueError(
                    f"{where}: {key!r} must be a name that the signature does not have"
                )
            if not isinstance(value, (int, str)):
                raise TypeError(
                    f"{where}: {key} must be an int, bool or str, but is a {type(value).__name__}"
                )
    return list(configs)


def _number(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


def _macros(name: str, configs: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names in configurations that are not fields of the kernel's name."""
    fields = codes.name_fields(name)
    return [key for key in (configs[0] if configs else ()) if key not in fields]


def _this_or(architecture: str) -> int | str:
    """Return GPU 0's compute capability, or `architecture` without a GPU."""
    try:
        return compute_capability()
    except RuntimeError:
        return architecture
