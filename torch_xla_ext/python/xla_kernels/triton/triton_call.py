"""triton_call, which runs Triton kernels as custom calls."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from xla_kernels import front_end
from xla_kernels import launch as launches
from xla_kernels.cuda_source import tuning
from xla_kernels.front_end import Parts
from xla_kernels.launch import Call, Grid, Launch, normalized_grid
from xla_kernels.plugin.driver import compute_capability
from xla_kernels.signature.schema import ArrayType
from xla_kernels.triton import descriptors
from xla_kernels.triton.arguments_by_name import (
    Arguments,
    Given,
    bind,
    bind_partly,
    by_name,
    computed,
    meta,
)
from xla_kernels.triton.kernel import (
    TritonKernel,
    compile_jit_function,
    part_of,
    replaced,
    tensors_in,
)

_THREADS_PER_WARP = 32
# A kernel of @triton.jit, @triton.heuristics or @triton.autotune, or a compiled one.
Kernel = Any
_OPTIONS = (
    *("num_warps", "num_stages", "num_ctas", "maxnreg"),
    *("launch_cooperative_grid", "launch_pdl"),
)


def triton_call(
    kernel: Kernel,
    *args: object,
    grid: Grid,
    outputs: Mapping[str, object] | Sequence[object] = (),
    aliases: Sequence[str] = (),
    sharding_rule: str | None = None,
    **keywords: object,
) -> list[torch.Tensor]:
    """Call a Triton kernel on XLA tensors, as part of the XLA program.

    ::

        (total,) = triton_call(add_kernel, x, y, outputs=[x], n=x.numel(), BLOCK=1024,
                               grid=lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),))

    On a GPU, Triton compiles the kernel for GPU 0 when the call is traced, once for each
    specialization. The configurations of an autotuned kernel are then timed, as those of
    `cuda_kernel`. On the CPU, Triton's interpreter runs the kernel as a slow reference.

    Args:
        kernel: a function with @triton.jit, @gluon.jit, @triton.autotune or @triton.heuristics, or
            a TritonKernel.
        args: the kernel's first arguments: XLA tensors (at least one in total), numbers, tuples of
            them, and tensor descriptors of XLA tensors. The kernel receives row-major tensors.
        grid: one to three numbers of blocks, or a function that computes them from the arguments by
            name.
        outputs: descriptions of the results, each a tensor or (shape, dtype): by parameter name, or
            for the first parameters that have no argument. The kernel receives them uninitialized.
            For a tensor descriptor, the result is its tensor, and the kernel receives a descriptor
            of it.
        aliases: the parameters to whose tensors the kernel writes, "states.0" in a tuple, or those
            of descriptors. XLA copies a tensor that is also used elsewhere.
        sharding_rule: the dimensions of sharded tensors that devices may share, as in
            `define_operator`: of the tensors among the arguments, in the order of the kernel's
            parameters, and of the call's results. Each device launches the kernel for its parts,
            for which `grid` and heuristics are called again. Numbers are the same on all devices;
            pass a number that depends on a divided size as a function of the other arguments by
            name, as in ``n=lambda args: args["x_ptr"].numel()``. Without it, sharded tensors are
            gathered.
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
    host = front_end.current().platform() == "Host"
    if isinstance(kernel, TritonKernel):
        parameters = _parameters_of_compiled(kernel, options, host)
        given = by_name(kernel.name, parameters, args, outputs, keywords)

        def bound_compiled(given: Given) -> Arguments:
            given = computed(parameters, given, {}, sharding_rule)
            return bind(kernel.name, parameters, given, aliases, {})

        call = _divided(kernel.name, bound_compiled, given, grid, sharding_rule)
        return _launch(lambda _: kernel, call)
    layers, function = _unwrapped(kernel)
    name = function.fn.__name__
    parameters = {
        key: parameter.default
        for key, parameter in inspect.signature(function.fn).parameters.items()
    }
    given = by_name(name, parameters, args, outputs, keywords)

    def bound(config: object | None, given: Given = given) -> Arguments:
        chosen = _tuned_values(config)
        given = computed(parameters, given, chosen, sharding_rule)
        for layer in layers:
            if type(layer).__name__ == "Heuristics":
                # Triton calls these functions with the other arguments, by name.
                others = bind_partly(parameters, given, chosen)
                chosen |= {key: value(others | chosen) for key, value in layer.values.items()}
        arguments = bind(name, parameters, given, aliases, chosen)
        arguments.options = _tuned_options(config) | options
        return arguments

    tuner = next((layer for layer in layers if type(layer).__name__ == "Autotuner"), None)
    if host and "Gluon" in type(function).__name__:
        raise RuntimeError(
            f"{name}: Triton's interpreter does not support Gluon; run the kernel on a GPU"
        )
    if "Interpreted" in type(function).__name__ and not host:
        raise RuntimeError(f"{name}: TRITON_INTERPRET=1 is for the CPU; unset it on a GPU")
    config = None
    if tuner is not None:
        config = tuner.configs[0] if host else _tuned(tuner, name, bound, grid)
    call = _divided(name, lambda given: bound(config, given), given, grid, sharding_rule)
    if host:
        return _interpret(function, call)
    return _launch(lambda arguments: _compiled(function, arguments), call)


class _Part(NamedTuple):
    """One device's part of a call: its arguments and its grid."""

    arguments: Arguments
    blocks: tuple[int, int, int]


class _Call(NamedTuple):
    """A call of a Triton kernel.

    Attributes:
        parts: the parts that a device may compute; None if each device computes the whole.
    """

    whole: _Part
    sharding_rule: str | None
    parts: Parts | None


def _divided(
    name: str,
    bound: Callable[[Given], Arguments],
    given: Given,
    grid: Grid,
    sharding_rule: str | None,
) -> _Call:
    def part(given: Given) -> _Part:
        arguments = bound(given)
        return _Part(arguments, normalized_grid(name, grid, arguments.values))

    whole = part(given)
    operands, outputs = whole.arguments.operands, list(whole.arguments.outputs)
    if sharding_rule is None:
        return _Call(whole, None, None)
    described = [key for key, value in whole.arguments.values.items() if _has_descriptor(value)]
    if described:
        raise ValueError(
            f"{name}: {described[0]} is a tensor descriptor, which has the sizes of the whole "
            "tensor: with a sharding_rule, make it in the kernel with tl.make_tensor_descriptor"
        )

    def of_part(inputs: Sequence[torch.Tensor], results: Sequence[ArrayType]) -> _Part:
        own = dict(zip(operands, inputs, strict=True))
        values = {
            key: replaced(value, lambda path, item: own.get(path, item), key)
            for key, value in given.values.items()
        }
        return part(Given(values, dict(zip(outputs, map(meta, results), strict=False))))

    tensors = tensors_in(whole.arguments.values)
    found = front_end.current().parts(
        name,
        of_part,
        sharding_rule,
        [tensors[path] for path in operands],
        whole.arguments.results,
        whole.arguments.aliases,
    )
    return _Call(whole, sharding_rule, found)


def _has_descriptor(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_descriptor, value))
    return descriptors.is_descriptor(value)


def compile_triton_kernel(
    kernel: Kernel,
    *args: object,
    capability: int | None = None,
    outputs: Mapping[str, object] | Sequence[object] = (),
    **keywords: object,
) -> TritonKernel:
    """Compile a kernel ahead of time, even without a GPU.

    `triton_call` accepts the result instead of the kernel; TritonKernel.save writes it to a file.

    Args:
        kernel: a @triton.jit function.
        args, outputs, keywords: as in `triton_call`, for an example call; tensors may be meta
            tensors. Integers that are 1 or multiples of 16 are compiled as such.
        capability: the GPU's compute capability, 90 for an H200; by default this machine's.
    """
    layers, function = _unwrapped(kernel)
    if layers:
        raise TypeError(
            "compile_triton_kernel: an autotuned kernel has several configurations: pass kernel.fn"
        )
    options = {key: keywords.pop(key) for key in _OPTIONS if key in keywords}
    signature = inspect.signature(function.fn).parameters
    parameters = {key: parameter.default for key, parameter in signature.items()}
    name = function.fn.__name__
    given = by_name(name, parameters, args, outputs, keywords)
    arguments = bind(name, parameters, given, (), {})
    capability = compute_capability() if capability is None else capability
    return compile_jit_function(function, arguments.values, options, capability)


def _unwrapped(kernel: Kernel) -> tuple[list[Kernel], Kernel]:
    """Return the decorators over a kernel, outermost first, and the kernel itself."""
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


def _tuned_values(config: Kernel | None) -> dict[str, object]:
    return dict(config.kwargs) if config is not None else {}


def _tuned_options(config: Kernel | None) -> dict[str, object]:
    if config is None:
        return {}
    return {key: getattr(config, key) for key in _OPTIONS if getattr(config, key, None) is not None}


_choices: dict[tuple[object, ...], object] = {}


def _tuned(tuner: Kernel, name: str, bound: Callable[[object], Arguments], grid: Grid) -> object:
    """Return an autotuned kernel's fastest configuration on the device."""
    first = bound(tuner.configs[0])
    tensors = tensors_in(first.values)
    types = {path: ArrayType.of(tensor) for path, tensor in tensors.items()}
    keys = [(k, str(first.values[k])) for k in tuner.keys if k in first.values and k not in tensors]
    key = tuner, *types.items(), *keys
    if key not in _choices:
        function = _unwrapped(tuner)[1]

        def prepared(config: object) -> tuple[Launch, Sequence[str]]:
            arguments = bound(config)
            part = _Part(arguments, normalized_grid(name, grid, arguments.values))
            try:
                call = _made(_compiled(function, arguments), part)
            except Exception as error:  # of Triton's compiler: leave it out, as Triton does
                raise RuntimeError(f"{type(error).__name__}: {error}") from error
            return call.launch, call.parameters

        number = tuning.choose(
            name,
            [{k: str(v) for k, v in config.all_kwargs().items()} for config in tuner.configs],
            ["triton", function.cache_key, keys],
            tuning.Arrays([types[path] for path in first.operands], first.results, first.aliases),
            [lambda config=config: prepared(config) for config in tuner.configs],
        )
        _choices[key] = tuner.configs[number]
    return _choices[key]


def _compiled(function: Kernel, arguments: Arguments) -> TritonKernel:
    return compile_jit_function(function, arguments.values, arguments.options, compute_capability())


def _parameters_of_compiled(
    kernel: TritonKernel, options: Mapping[str, object], host: bool
) -> dict[str, object]:
    """Return the kernel's parameters, with the constants that the caller may omit."""
    if options:
        raise TypeError(
            f"{kernel.name} is already compiled; pass {next(iter(options))} to "
            "compile_triton_kernel"
        )
    if host:
        raise RuntimeError(f"{kernel.name} is compiled for GPUs; on the CPU pass the kernel itself")
    constants = {name: _Constant(text) for name, text in kernel.constants.items()}
    names = [path.partition(".")[0] for path in kernel.signature]
    parameters = dict.fromkeys(names, inspect.Parameter.empty)
    return parameters | {name: value for name, value in constants.items() if name in parameters}


class _Constant:
    """A compiled-in value, for a parameter that the caller omits."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __index__(self) -> int:
        return int(self.text)


def _launch(compiled: Callable[[Arguments], TritonKernel], divided: _Call) -> list[torch.Tensor]:
    def made(part: _Part) -> Call:
        return _made(compiled(part.arguments), part)

    call = made(divided.whole)._replace(sharding_rule=divided.sharding_rule)
    found = divided.parts  # without the tensors of the whole
    if found is not None:
        call = call._replace(local=lambda *part: made(found.at(*part)), local_values=found)
    return front_end.current().launch(call)


def _made(kernel: TritonKernel, part: _Part) -> Call:
    arguments, blocks = part
    kernel.check(arguments.values)
    tensors = tensors_in(arguments.values)
    operands, results = arguments.operands, arguments.results
    addresses = {path: launches.operand(i) for i, path in enumerate(operands)}
    paths = [*arguments.outputs, *arguments.written]
    addresses |= {path: launches.result(i) for i, path in enumerate(paths)}
    words = []
    for name, type_ in kernel.signature.items():
        if type_ == "constexpr":
            continue
        given = part_of(arguments.values, name)
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
        # As for Triton's own launcher, the grid counts clusters.
        grid=tuple(b * c for b, c in zip(blocks, kernel.cluster, strict=True)),
        block=(_THREADS_PER_WARP * kernel.num_warps, 1, 1),
        cluster=kernel.cluster,
        shared=kernel.shared,
        cooperative=kernel.cooperative,
        dependent=kernel.dependent,
        spread=True,
    )
    inputs = [tensors[path] for path in operands]
    return Call(
        launch, inputs, results, words, arguments.aliases, num_hidden_results=bool(kernel.scratch)
    )


def _interpret(function: Kernel, call: _Call) -> list[torch.Tensor]:
    from xla_kernels.triton import interpreter

    def number(part: _Part, among: object = None) -> int:
        arguments, blocks = part
        operands, tensors = arguments.operands, tensors_in(arguments.values)

        def plain_only(path: str, value: object) -> object:
            return None if path in tensors else value

        plain = {key: replaced(value, plain_only, key) for key, value in arguments.values.items()}
        outputs = {key: (tuple(t.shape), t.dtype) for key, t in arguments.outputs.items()}
        interpretation = interpreter.Interpretation(
            function.fn, blocks, plain, operands, arguments.written, outputs
        )
        key = f"{id(function.fn)} {blocks} {plain} {operands} {arguments.written} {outputs} {among}"
        return interpreter.number_of(key, interpretation)

    found = call.parts  # without the tensors of the whole

    def of_part(values: Sequence[object], results: Sequence[ArrayType]) -> list[object]:
        return [values[0], number(found.at(values[0], results))]

    tensors = tensors_in(call.whole.arguments.values)
    return front_end.current().run_operator(
        torch.ops.xla_kernels_triton.interpret.default,
        [tensors[path] for path in call.whole.arguments.operands],
        number(call.whole, found),
        sharding_rule=call.sharding_rule,
        of_part=None if found is None else of_part,
    )
