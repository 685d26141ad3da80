"""triton_call: Triton kernels as custom calls."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch_xla

from torch_xla_ext.custom_call import compiled_kernel
from torch_xla_ext.launchers.triton import descriptors
from torch_xla_ext.launchers.triton.kernel import (
    TritonKernel,
    compile_jit_function,
    part,
    replaced,
    tensors_in,
)
from torch_xla_ext.registry import registration
from xla_kernels import launch as launches
from xla_kernels.launch import Call, Grid, Launch, normalized_grid
from xla_kernels.plugin.driver import compute_capability
from xla_kernels.signature.schema import ArrayType

_THREADS_PER_WARP = 32
_log = logging.getLogger(__name__)
# A kernel as @triton.jit, @triton.heuristics or @triton.autotune makes it, or one that is compiled.
Kernel = Any
_OPTIONS = (
    *("num_warps", "num_stages", "num_ctas", "maxnreg"),
    *("launch_cooperative_grid", "launch_pdl"),
)


@dataclasses.dataclass
class _Arguments:
    """A kernel's arguments by name, of which `outputs` are results, and `options` of compiling."""

    values: dict[str, object]
    outputs: dict[str, ArrayType]
    written: list[str]
    options: dict[str, object]

    @property
    def operands(self) -> list[str]:
        """Their paths: "x", or "tensors.0" in a tuple."""
        return [path for path in tensors_in(self.values) if path not in self.outputs]


def _bind(
    name: str,
    parameters: Mapping[str, object],
    args: Sequence[object],
    outputs: Mapping[str, object] | Sequence[object],
    aliases: Sequence[str],
    keywords: Mapping[str, object],
    chosen: Mapping[str, object],
) -> _Arguments:
    """The arguments of all parameters.

    Args:
        parameters: names and defaults, inspect.Parameter.empty without.
        chosen: what an autotuned kernel's configuration gives.
    """
    names = list(parameters)
    given = dict(zip(names, args, strict=False)) | dict(keywords)
    if len(args) > len(names):
        raise TypeError(f"{name}: {len(args)} arguments, but its parameters are {names}")
    unknown = [key for key in given if key not in parameters]
    if unknown:
        raise TypeError(f"{name}: there is no parameter {unknown[0]!r}; its parameters are {names}")
    if not isinstance(outputs, Mapping):
        free = [key for key in names[len(args) :] if key not in given]
        if len(outputs) > len(free):
            raise TypeError(f"{name}: {len(outputs)} outputs, but only {free} are left for them")
        outputs = dict(zip(free, outputs, strict=False))
    types = {
        key: ArrayType.of(value.base if descriptors.is_descriptor(value) else value)
        for key, value in outputs.items()
    }
    twice = [key for key in types if key in given or key not in parameters]
    if twice:
        raise TypeError(
            f"{name}: output {twice[0]!r} is not one of the remaining parameters: {names}"
        )
    placeholders = {}
    for key, type_ in types.items():
        empty = torch.empty(tuple(type_.shape), dtype=type_.dtype, device="meta")
        is_descriptor = descriptors.is_descriptor(outputs[key])
        placeholders[key] = descriptors.with_base(outputs[key], empty) if is_descriptor else empty
    values = {}
    for key, default in parameters.items():
        for source in (given, placeholders, chosen):
            if key in source:
                values[key] = source[key]
                break
        else:
            if default is inspect.Parameter.empty:
                raise TypeError(f"{name}: no argument for the parameter {key!r}")
            values[key] = default
    tensors = tensors_in(given)
    for key in aliases:
        if key not in tensors:
            raise TypeError(
                f"{name}: aliases names {key!r}, which is not one of its tensor arguments"
            )
    arguments = _Arguments(values, types, list(aliases), {})
    if not arguments.operands:
        raise TypeError(f"{name}: none of its arguments is an XLA tensor")
    if not types and not aliases:
        raise TypeError(
            f"{name}: it has neither outputs nor aliases, so the call returns no tensor; "
            "pass one of them"
        )
    return arguments


def triton_call(
    kernel: Kernel,
    *args: object,
    grid: Grid,
    outputs: Mapping[str, object] | Sequence[object] = (),
    aliases: Sequence[str] = (),
    **keywords: object,
) -> list[torch.Tensor]:
    """Calls a Triton kernel on XLA tensors, as part of the XLA program.

    ::

        (total,) = triton_call(add_kernel, x, y, outputs=[x], n=x.numel(), BLOCK=1024,
                               grid=lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),))

    On a GPU, Triton compiles the kernel for GPU 0 when the call is traced, once for each
    specialization. The configurations of an autotuned kernel are then timed on arrays of zeros of
    these shapes, and the choice is kept for the process. On the CPU, Triton's interpreter runs the
    kernel as a slow reference.

    Args:
        kernel: a function with @triton.jit, @gluon.jit, @triton.autotune or @triton.heuristics, or
            a TritonKernel.
        args: the kernel's first arguments: XLA tensors (at least one in total), numbers, tuples of
            them, and tensor descriptors of XLA tensors. The kernel gets row-major tensors.
        grid: one to three numbers of blocks, or a function that computes them from the arguments by
            name.
        outputs: descriptions of the results, each a tensor or (shape, dtype): by parameter name, or
            for the first parameters that have no argument. The kernel gets them uninitialized. A
            tensor descriptor stands for its tensor, and the kernel gets such a descriptor.
        aliases: the parameters to whose tensors the kernel writes, "states.0" in a tuple, or those
            of descriptors. XLA copies a tensor that is also used elsewhere.
        keywords: the other arguments, including constants, and Triton's options
            num_warps, num_stages, num_ctas, maxnreg, launch_cooperative_grid and launch_pdl.

    Returns:
        The results, followed by the new values of the tensors that `aliases` names. They have no
        derivative.

    Raises:
        TypeError, ValueError: immediately, for wrong arguments.
        triton.CompilationError: immediately, from compiling the kernel.
        RuntimeError: when the results are read, if the launch failed.
    """
    options = {key: keywords.pop(key) for key in _OPTIONS if key in keywords}
    host = registration.device_platform() == "Host"
    if isinstance(kernel, TritonKernel):
        return _call_compiled(kernel, args, grid, outputs, aliases, keywords, options)
    layers, function = _unwrapped(kernel)
    name = function.fn.__name__
    parameters = {
        key: parameter.default
        for key, parameter in inspect.signature(function.fn).parameters.items()
    }

    def bound(config: object | None) -> _Arguments:
        chosen = _tuned_values(config)
        for layer in layers:
            if type(layer).__name__ == "Heuristics":
                # Triton calls them with the other arguments, by name.
                others = _bind_partly(name, parameters, args, outputs, keywords, chosen)
                chosen |= {key: value(others | chosen) for key, value in layer.values.items()}
        arguments = _bind(name, parameters, args, outputs, aliases, keywords, chosen)
        arguments.options = _tuned_options(config) | options
        return arguments

    tuner = next((layer for layer in layers if type(layer).__name__ == "Autotuner"), None)
    if host and "Gluon" in type(function).__name__:
        raise RuntimeError(f"{name}: Triton's interpreter does not know Gluon; it needs a GPU")
    if host:
        config = tuner.configs[0] if tuner is not None else None
        return _interpret(function, bound(config), grid)
    if "Interpreted" in type(function).__name__:
        raise RuntimeError(f"{name}: TRITON_INTERPRET=1 is for the CPU; unset it on a GPU")
    config = _tuned(tuner, name, bound, grid) if tuner is not None else None
    arguments = bound(config)
    compiled = compile_jit_function(
        function, arguments.values, arguments.options, compute_capability()
    )
    return _launch(compiled, arguments, grid)


def compile_triton_kernel(
    kernel: Kernel,
    *args: object,
    capability: int | None = None,
    outputs: Mapping[str, object] | Sequence[object] = (),
    **keywords: object,
) -> TritonKernel:
    """Compiles a kernel ahead of time, even without a GPU.

    `triton_call` accepts the result instead of the kernel; TritonKernel.save writes it to a file.

    Args:
        kernel: a @triton.jit function.
        args, outputs, keywords: as in `triton_call`, for an example call; tensors may be meta
            tensors. Integers that are 1 or multiples of 16 are compiled as such.
        capability: the GPU's compute capability, 90 for an H200; None for this machine's.
    """
    layers, function = _unwrapped(kernel)
    if layers:
        raise TypeError("compile_triton_kernel: choose a configuration: pass kernel.fn")
    options = {key: keywords.pop(key) for key in _OPTIONS if key in keywords}
    signature = inspect.signature(function.fn).parameters
    parameters = {key: parameter.default for key, parameter in signature.items()}
    arguments = _bind(function.fn.__name__, parameters, args, outputs, (), keywords, {})
    capability = compute_capability() if capability is None else capability
    return compile_jit_function(function, arguments.values, options, capability)


def _unwrapped(kernel: Kernel) -> tuple[list[Kernel], Kernel]:
    """The decorators over a kernel, outermost first, and the kernel itself."""
    layers = []
    while type(kernel).__name__ in ("Autotuner", "Heuristics"):
        layers.append(kernel)
        kernel = kernel.fn
    if not {"JITFunction", "InterpretedFunction"} & {
        each.__name__ for each in type(kernel).__mro__
    }:
        raise TypeError(
            "triton_call: kernel must be a @triton.jit function or a TritonKernel, but is "
            f"of type {type(kernel).__name__}"
        )
    return layers, kernel


def _bind_partly(
    name: str,
    parameters: Mapping[str, object],
    args: Sequence[object],
    outputs: Mapping[str, object] | Sequence[object],
    keywords: Mapping[str, object],
    chosen: Mapping[str, object],
) -> dict[str, object]:
    """The arguments that a heuristic sees: all that are known before it."""
    known = dict(zip(parameters, args, strict=False)) | dict(keywords) | dict(chosen)
    if isinstance(outputs, Mapping):
        known |= dict(outputs)
    defaults = {k: v for k, v in parameters.items() if v is not inspect.Parameter.empty}
    return defaults | known


def _tuned_values(config: Kernel | None) -> dict[str, object]:
    return dict(config.kwargs) if config is not None else {}


def _tuned_options(config: Kernel | None) -> dict[str, object]:
    if config is None:
        return {}
    return {key: getattr(config, key) for key in _OPTIONS if getattr(config, key, None) is not None}


_choices: dict[tuple[object, ...], object] = {}


def _tuned(tuner: Kernel, name: str, bound: Callable[[object], _Arguments], grid: Grid) -> object:
    """The configuration of an autotuned kernel that takes the least time on the device."""
    first = bound(tuner.configs[0])
    tensors = tensors_in(first.values)
    key = (
        tuner,
        *((path, tuple(tensor.shape), tensor.dtype) for path, tensor in tensors.items()),
        *((k, str(first.values[k])) for k in tuner.keys if k in first.values and k not in tensors),
    )
    if key not in _choices:
        times = {}
        for config in tuner.configs:
            try:
                times[config] = _timed(tuner.fn, bound(config), grid)
            except Exception as error:  # too much shared memory, for instance; as Triton does
                _log.warning("%s: configuration %s is left out: %s", name, config, error)
        if not times:
            raise RuntimeError(f"{name}: none of its configurations can be launched")
        _choices[key] = min(times, key=times.__getitem__)
        _log.info("%s: tuned to %s of %d", name, _choices[key], len(tuner.configs))
    return _choices[key]


def _timed(kernel: Kernel, arguments: _Arguments, grid: Grid) -> float:
    """Seconds of 20 calls in one program, on zeros."""
    operands = arguments.operands

    def zeros(path: str, value: object) -> object:
        if path not in operands:
            return value
        return torch.zeros(value.shape, dtype=value.dtype).to(value.device)

    values = {name: replaced(value, zeros, name) for name, value in arguments.values.items()}
    trial = dataclasses.replace(arguments, values=values)
    function = _unwrapped(kernel)[1]
    compiled = compile_jit_function(function, trial.values, trial.options, compute_capability())
    times = []
    for _ in range(3):  # the first one compiles
        results = [_launch(compiled, trial, grid, has_side_effect=True)[0] for _ in range(20)]
        begin = time.perf_counter()
        torch_xla._XLAC._xla_sync_multi(results, [], True, True)
        times.append(time.perf_counter() - begin)
    return min(times)


def _call_compiled(
    kernel: TritonKernel,
    args: Sequence[object],
    grid: Grid,
    outputs: Mapping[str, object] | Sequence[object],
    aliases: Sequence[str],
    keywords: Mapping[str, object],
    options: Mapping[str, object],
) -> list[torch.Tensor]:
    if options:
        raise TypeError(f"{kernel.name} is already compiled; {next(iter(options))} is part of it")
    if registration.device_platform() == "Host":
        raise RuntimeError(f"{kernel.name} is compiled for GPUs; on the CPU pass the kernel itself")
    constants = {name: _Constant(text) for name, text in kernel.constants.items()}
    names = [path.partition(".")[0] for path in kernel.signature]
    parameters = dict.fromkeys(names, inspect.Parameter.empty)
    parameters |= {name: value for name, value in constants.items() if name in parameters}
    arguments = _bind(kernel.name, parameters, args, outputs, aliases, keywords, {})
    return _launch(kernel, arguments, grid)


class _Constant:
    """A value that is compiled in, where the caller leaves it out."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __index__(self) -> int:
        return int(self.text)


def _launch(
    kernel: TritonKernel, arguments: _Arguments, grid: Grid, has_side_effect: bool = False
) -> list[torch.Tensor]:
    kernel.check(arguments.values)
    blocks = normalized_grid(kernel.name, grid, arguments.values)
    tensors = tensors_in(arguments.values)
    operands, outputs = arguments.operands, list(arguments.outputs)
    results = [arguments.outputs[name] for name in outputs]
    results += [ArrayType.of(tensors[path]) for path in arguments.written]
    addresses = {path: launches.operand(i) for i, path in enumerate(operands)}
    addresses |= {path: launches.result(i) for i, path in enumerate([*outputs, *arguments.written])}
    words = []
    for name, type_ in kernel.signature.items():
        if type_ == "constexpr":
            continue
        given = part(arguments.values, name)
        if name in kernel.descriptors:
            words += descriptors.words(kernel.descriptors[name], given, addresses[name])
        elif name in addresses:
            words.append(addresses[name])
        else:
            words.append(launches.value(kernel.packed(name, given)))
    scratch = launches.NULL
    if kernel.scratch:
        size = kernel.scratch * int(np.prod(blocks)) * int(np.prod(kernel.cluster))
        results.append(ArrayType((size,), torch.uint8))
        scratch = launches.result(len(results) - 1)
    words += [scratch, launches.NULL][: kernel.scratch_pointers]
    launch = Launch(
        module=kernel.cubin,
        digest=kernel.digest,
        kernel=kernel.name,
        # Like for Triton's own launcher, the grid is given in clusters.
        grid=tuple(b * c for b, c in zip(blocks, kernel.cluster, strict=True)),
        block=(_THREADS_PER_WARP * kernel.num_warps, 1, 1),
        cluster=kernel.cluster,
        shared=kernel.shared,
        cooperative=kernel.cooperative,
        dependent=kernel.dependent,
        spread=True,
    )
    aliases = {
        len(outputs) + index: operands.index(name) for index, name in enumerate(arguments.written)
    }
    made = compiled_kernel.launch(
        Call(launch, [tensors[i] for i in operands], results, words, aliases, has_side_effect)
    )
    return made[: len(outputs) + len(arguments.written)]


def _interpret(function: Kernel, arguments: _Arguments, grid: Grid) -> list[torch.Tensor]:
    from torch_xla_ext.launchers.torch_operator.register import run_torch_operator
    from torch_xla_ext.launchers.triton import interpreter

    name = function.fn.__name__
    blocks = normalized_grid(name, grid, arguments.values)
    operands, tensors = arguments.operands, tensors_in(arguments.values)

    def plain_only(path: str, value: object) -> object:
        return None if path in tensors else value

    plain = {key: replaced(value, plain_only, key) for key, value in arguments.values.items()}
    call = interpreter.Interpretation(
        function.fn,
        blocks,
        plain,
        operands,
        arguments.written,
        {key: (tuple(t.shape), t.dtype) for key, t in arguments.outputs.items()},
    )
    key = f"{id(function.fn)} {blocks} {plain} {operands} {call.written} {call.outputs}"
    number = interpreter.number_of(key, call)
    results = run_torch_operator(
        "torch_xla_ext_triton::interpret",
        [tensors[path] for path in operands],
        number,
    )
    count = len(arguments.written)
    return [*results[count:], *results[:count]]
