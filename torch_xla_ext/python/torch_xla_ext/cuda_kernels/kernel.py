"""cuda_kernel: a CUDA kernel from its source, callable with XLA tensors."""

from __future__ import annotations

import os
import string
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from torch_xla_ext.calls import transforms
from torch_xla_ext.cuda.driver import compute_capability
from torch_xla_ext.cuda_kernels import code as codes
from torch_xla_ext.cuda_kernels import launch as launches
from torch_xla_ext.cuda_kernels import placing
from torch_xla_ext.cuda_kernels.code import Kernel, SavedCode, SourceCode
from torch_xla_ext.cuda_kernels.compiler import Instance, Source
from torch_xla_ext.cuda_kernels.configuration import Configuration, Number
from torch_xla_ext.cuda_kernels.cpp_types import Parameter
from torch_xla_ext.cuda_kernels.launch import Grid, Launch
from torch_xla_ext.cuda_kernels.signature import Signature
from torch_xla_ext.kernel_schema.schema import ArrayType
from torch_xla_ext.targets import registration

Reference = Callable[..., torch.Tensor | Sequence[torch.Tensor]]
_Outputs = Mapping[str | int, object] | Sequence[object]


def cuda_kernel(
    source: str | os.PathLike[str],
    name: str,
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
    reference: Reference | None = None,
) -> CudaKernel:
    """Makes a callable of a CUDA kernel in source text, without nvcc.

    ::

        square = torch_xla_ext.cuda_kernel('''
            __global__ void square(const float* x, float* out, int n) {
              int i = blockIdx.x * blockDim.x + threadIdx.x;
              if (i < n) out[i] = x[i] * x[i];
            }''', "square", reference=lambda x, n: x * x)
        (y,) = square[(n + 255) // 256, 256](x, n, outputs=[x])

    On a GPU, NVRTC compiles it for GPU 0 when a call is first traced. The machine code is cached
    on disk ($TORCH_XLA_EXT_KERNEL_CACHE, by default ~/.cache/torch_xla_ext/kernels), by the content
    of the source and of the headers that it includes, the options, the architecture and NVRTC. It
    is part of the XLA program, which needs neither NVRTC nor the source to run.

    With a signature the kernel needs no `outputs` at its calls, can be the target of
    `define_operator`, and is called as ``square(x)`` if `grid` and `block` are given here.

    Args:
        source: CUDA C++, or the path of a file with it (a Path, or text that ends with .cu or
            .cuh). `extern "C"` is not needed.
        name: the `__global__` function, or an expression that names it: ``"ns::scale<float, 4>"``.
            With a signature, ``"scale<{T}>"`` has the type of the dtype variable T, and
            ``"scale<{n}>"`` the size or parameter n.
        options: further options of NVRTC, such as ``"--use_fast_math"`` or ``"-DBLOCK=128"``.
        include_dirs: folders of headers. CUDA's own are found in NVIDIA's pip packages, or in a
            toolkit.
        signature: operands and results as in kernel.h (docs/kernels.md), perhaps with a name:
            ``"(x: T[n]) -> (out: T[n]) where T: F32 | F16"``. A result without a dtype,
            ``-> (cache)``, is written to that operand's buffer.
        parameters: with a signature, the other arguments of a call: ``"eps: f32, causal: bool"``.
        arguments: with a signature, what the kernel's parameters get, in their order, as a list or
            as words: names of operands, results, parameters and sizes, ``x.size`` for a number of
            elements, and ``none`` for a null pointer. By default the parameters' own names.
        grid, block: one to three numbers of blocks and of threads, or a function that computes
            them from a dict of the arguments: numbers, sizes, and ArrayType for tensors.
        shared_bytes: the dynamic shared memory of a block, or such a function.
        cluster: one to three numbers of blocks that form a cluster.
        cooperative: whether blocks may synchronize with each other (grid.sync()).
        dependent: whether it may start before the kernel before it ends (programmatic dependent
            launch); the kernel then has to wait for it.
        reference: on the CPU, computes the results in place of the kernel. It gets the arguments of
            the call and returns what the call does: a tensor, or several.

    Raises:
        FileNotFoundError: there is no such file.
        TypeError, ValueError: a wrong argument.
    """
    text, file = _read(source)
    folders = tuple(Path(folder).resolve() for folder in include_dirs)
    made = SourceCode(Source(text, file, name, tuple(options), folders))
    return CudaKernel(
        name,
        made,
        signature=signature,
        parameters=parameters,
        arguments=arguments,
        configuration=Configuration(
            name, grid, block, shared_bytes, cluster, cooperative, dependent
        ),
        reference=reference,
    )


def _read(source: object) -> tuple[str, Path | None]:
    if isinstance(source, str) and not ("\n" not in source and source.endswith((".cu", ".cuh"))):
        return source, None
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"cuda_kernel: source must be CUDA C++ or a path, but is a {type(source).__name__}"
        )
    file = Path(source).resolve()
    return file.read_text(), file


class CudaKernel:
    """A CUDA kernel; `cuda_kernel` and `CudaKernel.from_file` make it.

    ``kernel[grid, block, shared_bytes](…)`` calls it, or with a signature, grid and block,
    ``kernel(…)``.

    Attributes:
        name: the kernel's, or the expression that names it.
        signature: None if it has none.
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
    ) -> None:
        self.name = name
        self._code = code
        self._configuration = configuration
        self._reference = reference
        self._warned: set[int] = set()
        self.signature: Signature | None = None
        if signature is not None:
            self.signature = Signature.parse(name, signature, parameters, arguments)
        elif parameters or arguments is not None:
            raise TypeError(f"{self._where}: parameters and arguments require a signature")
        elif fields := _fields(name):
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
        reference: Reference | None = None,
    ) -> CudaKernel:
        """Makes a callable of a kernel that is compiled: a file of `save`, a cubin or PTX.

        Args:
            path: the file.
            name: the kernel's: as in C++, or as it is called in the file. None if it has one.
            prototype: the kernel's declaration, ``"void axpy(float a, const float* x, float* y)"``:
                for `extern "C"` functions, whose types a file does not have, and to name arguments.
            signature: this and what follows are as of `cuda_kernel`.

        Raises:
            FileNotFoundError: there is no such file.
            TypeError, ValueError: a wrong argument, or the file has no such kernel.
        """
        name, code = codes.load(Path(path), name, prototype)
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
        )

    def compile(
        self, architecture: str | None = None, *, instances: Sequence[str] | None = None
    ) -> dict[str, bytes]:
        """Compiles it now, even without a GPU.

        Args:
            architecture: "sm_90a" for a cubin, "compute_90" for PTX; None for GPU 0.
            instances: for a name with fields, the name expressions; by default one for each dtype.

        Returns:
            The modules by name expression.

        Raises:
            CompilationError: with the compiler's text.
            ValueError: NVRTC does not compile for this architecture.
            RuntimeError: NVRTC is missing, or there is no GPU.
        """
        code = self._source_code("compile")
        names = self._instances(instances)
        if architecture is None:
            capability = compute_capability()
            return {name: code.kernel(name, capability).module for name in names}
        return {name: code.instance(name, architecture).module for name in names}

    def save(
        self,
        path: str | os.PathLike[str],
        architectures: Sequence[str],
        *,
        instances: Sequence[str] | None = None,
    ) -> None:
        """Compiles it for several architectures, and writes a file for `from_file`.

        Machines that read it need neither NVRTC nor headers.

        Args:
            path: the file.
            architectures, instances: as of `compile`.

        Raises:
            As `compile`.
        """
        code = self._source_code("save")
        compiled: dict[tuple[str, str], Instance] = {
            (name, architecture): code.instance(name, architecture)
            for name in self._instances(instances)
            for architecture in architectures
        }
        codes.save(Path(path), compiled, code.declared())

    def __getitem__(self, key: object) -> Callable[..., list[torch.Tensor]]:
        given = key if isinstance(key, tuple) else (key,)
        if not 2 <= len(given) <= 3:
            raise TypeError(
                f"{self._where}: expected kernel[grid, block] or kernel[grid, block, shared_bytes],"
                f" but got {len(given)} values; several dimensions are a tuple: "
                f"{self.name}[(2, 3), 128]"
            )
        configuration = self._configuration.replaced(*given)

        def call(
            *args: object,
            outputs: _Outputs | None = None,
            aliases: Sequence[str | int] | None = None,
            has_side_effect: bool = False,
        ) -> list[torch.Tensor]:
            """Calls the kernel, as part of the XLA program.

            Args:
                args: what the kernel's parameters get, in their order without the outputs: XLA
                    tensors, at least one, for pointers (None for a null pointer), numbers, and
                    bytes for structs. The kernel gets row-major tensors.
                outputs: descriptions of the results, each a tensor or (shape, dtype): for the
                    kernel's pointers to what is not const, in their order, or by the parameters'
                    names. The kernel gets them uninitialized.
                aliases: the arguments to whose tensors the kernel writes, by the parameters' names
                    or by position. XLA copies a tensor that is also used elsewhere.
                has_side_effect: as of `custom_call`.

            Returns:
                The results, followed by the new values of the tensors that `aliases` names. They
                have no derivative.
            """
            return self._call(configuration, args, outputs, aliases, has_side_effect)

        return call

    def __call__(self, *args: object) -> list[torch.Tensor]:
        """Calls a kernel that has a signature, grid and block.

        Args:
            args: the operands and then the parameters, in the signature's order.

        Returns:
            The results.
        """
        if self.signature is None:
            raise TypeError(
                f"{self._where}: call it as kernel[grid, block](…), or give it a signature"
            )
        return self._call(self._configuration, args, None, None, False)

    def __str__(self) -> str:
        return self.signature.schema.target if self.signature is not None else self.name

    @property
    def _where(self) -> str:
        return f"cuda_kernel {self.name!r}"

    def _source_code(self, what: str) -> SourceCode:
        if isinstance(self._code, SavedCode):
            raise TypeError(f"{self._where}: {what} needs the source, but it is from a file")
        return self._code

    def _instances(self, given: Sequence[str] | None) -> list[str]:
        if given is not None:
            return list(given)
        if not (fields := _fields(self.name)):
            return [self.name]
        options = self.signature.type_options()
        if unknown := [field for field in fields if field not in options]:
            raise TypeError(
                f"{self._where}: {{{unknown[0]}}} is not a dtype: name the instances, as in "
                f'instances=["scale<128>"]'
            )
        return codes.all_names(self.name, {field: options[field] for field in fields})

    # What follows makes calls; operators/cuda_kernel_call.py uses it, too.

    def launch(
        self,
        configuration: Configuration,
        expression: str,
        values: Mapping[str | int, object],
    ) -> tuple[Kernel, Launch]:
        """The compiled kernel, and its launch with arguments of these names."""
        kernel = self._code.kernel(expression, compute_capability())
        digest = launches.digest_of(kernel.function, kernel.module)
        return kernel, configuration.launch(kernel.module, digest, kernel.function, values)

    def prepared(
        self,
        operands: Sequence[ArrayType | None],
        results: Sequence[ArrayType],
        parameters: Mapping[str, object],
        configuration: Configuration | None = None,
    ) -> tuple[Launch, list[str]]:
        """The launch of checked arguments, for a kernel with a signature.

        Returns:
            The launch, and its parameters; operands are counted without those that are absent.
        """
        bound = self.signature.bind(operands, results, parameters)
        expression = self.signature.expression(self.name, bound)
        kernel, launch = self.launch(configuration or self._configuration, expression, bound.values)
        _refuse_empty(self._where, launch, results)
        words = self.signature.words(self._where, kernel, bound)
        return launch, words

    def reference_results(
        self, args: Sequence[object], types: Sequence[ArrayType], least: int | None = None
    ) -> list[torch.Tensor]:
        """What the reference computes, checked.

        Args:
            types: of the kernel's results.
            least: how many it has to return; by default all.
        """
        if self._reference is None:
            raise RuntimeError(
                f"{self._where}: it runs on a GPU only; give it a reference for the CPU: "
                "cuda_kernel(…, reference=function)"
            )
        with torch.no_grad():
            # Of copies: the caller's tensors do not change, whatever the reference does.
            given = self._reference(
                *(each.clone() if isinstance(each, torch.Tensor) else each for each in args)
            )
        results = [given] if isinstance(given, torch.Tensor) else list(given)
        if not (len(types) if least is None else least) <= len(results) <= len(types):
            raise ValueError(
                f"{self._where}: the reference returned {len(results)} tensors, but the kernel has "
                f"{len(types)} results"
            )
        came = [ArrayType.of(result) for result in results]
        if any((*a,) != (*b,) for a, b in zip(came, types, strict=False)):
            raise ValueError(
                f"{self._where}: the reference returned {', '.join(map(str, came))}, but the "
                f"kernel's results are {', '.join(map(str, types))}"
            )
        return results

    def _call_reference(
        self, args: Sequence[object], types: Sequence[ArrayType]
    ) -> list[torch.Tensor]:
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        transforms.refuse(self.name, tensors)
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            return self.reference_results(args, types)

        def call(operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return self.reference_results(args, types)

        return list(transforms.WithoutDerivative.apply(self.name, call, *tensors))

    def _call(
        self,
        configuration: Configuration,
        args: Sequence[object],
        outputs: _Outputs | None,
        aliases: Sequence[str | int] | None,
        has_side_effect: bool,
    ) -> list[torch.Tensor]:
        if self.signature is not None:
            if outputs is not None or aliases is not None:
                raise TypeError(f"{self._where}: outputs and aliases follow from its signature")
            return self._call_with_signature(configuration, args, has_side_effect)
        if isinstance(aliases, str):
            aliases = [aliases]
        outputs, aliases = outputs or (), aliases or ()
        if not outputs and not aliases:
            raise TypeError(
                f"{self._where}: it has neither outputs nor aliases, so the call returns no "
                "tensor; pass one of them"
            )
        if not any(isinstance(value, torch.Tensor) for value in args):
            raise TypeError(f"{self._where}: none of its arguments is an XLA tensor")
        if registration.device_platform() == "Host":
            places = self._placed(self._code.declared(), args, outputs, aliases)
            return self._call_reference(args, self._result_types(args, places))
        kernel = self._code.kernel(self.name, compute_capability())
        places = self._placed(kernel.parameters, args, outputs, aliases)
        return self._call_placed(configuration, kernel, args, places, has_side_effect)

    @staticmethod
    def _result_types(args: Sequence[object], places: placing.Places) -> list[ArrayType]:
        return [*places.outputs, *(ArrayType.of(args[position]) for position in places.aliases)]

    def _call_placed(
        self,
        configuration: Configuration,
        kernel: Kernel,
        args: Sequence[object],
        places: placing.Places,
        has_side_effect: bool,
    ) -> list[torch.Tensor]:
        words: dict[int, str] = {}
        values: dict[str | int, object] = {}
        operands: list[torch.Tensor] = []
        written: dict[int, int] = {}

        def name(place: int, value: object) -> None:
            values[place] = value
            if (of_place := kernel.parameters[place].name) is not None:
                values[of_place] = value

        for number, place in enumerate(places.of_outputs):
            name(place, places.outputs[number])
            words[place] = launches.result(number)
        for position, (place, value) in enumerate(zip(places.of_arguments, args, strict=True)):
            if not isinstance(value, torch.Tensor):
                name(place, value)
                where = f"{self._where}: {placing.label(kernel.parameters, place)}"
                size = kernel.sizes[place] if kernel.sizes is not None else None
                words[place] = launches.value(kernel.parameters[place].packed(where, value, size))
                continue
            name(place, ArrayType.of(value))
            words[place] = launches.operand(len(operands))
            if position in places.aliases:
                number = len(places.outputs) + places.aliases.index(position)
                words[place] = launches.result(number)
                written[number] = len(operands)
            operands.append(value)
        results = self._result_types(args, places)
        digest = launches.digest_of(kernel.function, kernel.module)
        launch = configuration.launch(kernel.module, digest, kernel.function, values)
        _refuse_empty(self._where, launch, results)
        parameters = [words[place] for place in range(len(kernel.parameters))]
        return launch.call(operands, results, parameters, written, has_side_effect)

    def _placed(
        self,
        parameters: Sequence[Parameter] | None,
        args: Sequence[object],
        outputs: _Outputs,
        aliases: Sequence[str | int],
    ) -> placing.Places:
        """The checked places of a call's arguments."""
        places = placing.place(self._where, parameters, args, outputs, aliases)
        if parameters is not None:
            placing.check(self._where, parameters, args, places)
            for position, place in enumerate(places.of_arguments):
                is_tensor = isinstance(args[position], torch.Tensor)
                if is_tensor and parameters[place].is_written and position not in places.aliases:
                    self._warn_of_write(parameters, place)
        return places

    def _warn_of_write(self, parameters: Sequence[Parameter], place: int) -> None:
        if place in self._warned:
            return
        self._warned.add(place)
        parameter = parameters[place]
        alias = "its position" if parameter.name is None else repr(parameter.name)
        warnings.warn(
            f"{self._where}: {placing.label(parameters, place)} is {parameter.type}, which "
            "is not const: if the kernel writes to it, the write is lost, or is seen by other uses "
            f"of the tensor; pass aliases=[{alias}] then, or declare it const",
            stacklevel=5,
        )

    def _call_with_signature(
        self, configuration: Configuration, args: Sequence[object], has_side_effect: bool
    ) -> list[torch.Tensor]:
        tensors, parameters = self.signature.checked_arguments(args)
        operands = tuple(None if t is None else ArrayType.of(t) for t in tensors)
        results = self.signature.results(operands, parameters)
        if registration.device_platform() == "Host":
            return self._call_reference(args, results)
        launch, words = self.prepared(operands, results, parameters, configuration)
        present = [tensor for tensor in tensors if tensor is not None]
        return launch.call(
            present, results, words, self.signature.aliases(operands), has_side_effect
        )


def _refuse_empty(where: str, launch: Launch, results: Sequence[ArrayType]) -> None:
    """Refuses a launch of no blocks, which would leave results with whatever was in memory."""
    if 0 in launch.grid and any(result.size for result in results):
        raise ValueError(
            f"{where}: a grid of {launch.grid} has no blocks, but the results have elements"
        )


def _fields(name: str) -> list[str]:
    """The names in braces."""
    return [field for _, field, _, _ in string.Formatter().parse(name) if field is not None]
