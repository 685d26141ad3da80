"""Use TVM-FFI functions as custom-call targets: `register_kernel` and `tvm_ffi_call`."""

import importlib.util
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType

import torch

from xla_kernels import elf, front_end, libraries
from xla_kernels import launch as launches
from xla_kernels.launch import Call, Function
from xla_kernels.signature import parse
from xla_kernels.signature.schema import ArrayType, Schema

_PREFIX = "__tvm_ffi_"
# Handles of functions, by library path and name.
_functions: dict[tuple[str, str], int] = {}
# The targets of tvm_ffi_call. Their names are unique to this process, so that a stored program of
# another process never finds a wrong function.
_targets: dict[tuple[object, ...], str] = {}
_PROCESS = uuid.uuid4().hex


def register_tvm_ffi_kernel(
    name: str,
    library: object,
    *,
    platform: str = "CUDA",
    symbol: str | None = None,
    arguments: str | Sequence[str] | None = None,
    signature: str | None = None,
    parameters: str = "",
    cuda_graph: bool = False,
) -> list[object]:
    """Register a TVM-FFI function as an FFI custom-call target.

    ::

        register_kernel(
            "RmsNorm", "norm.so", abi="tvm-ffi", symbol="rmsnorm",
            signature="(x: T[n, d], weight: T[d]) -> (out: T[n, d]) where T: F16 | BF16",
            parameters="eps: f64, pdl: bool",
            arguments="out x weight eps pdl",
        )

    The function must write its results to tensors among its arguments, as FlashInfer's do.
    TVM-FFI's environment provides XLA's stream and memory to it. Tensors are row-major. With a
    signature, calls are checked against it, and `define_operator` can define an operator for the
    target.

    Args:
        name: the target.
        library: the path of a shared library, a tvm_ffi.Function, or an object that wraps one, such
            as the result of CuTe-DSL's ``cute.compile(…, options="--enable-tvm-ffi")``.
        platform: where the function's tensors are: "CUDA", or "Host" for the CPU.
        symbol: the function's name in the library; by default the target's.
        arguments: the function's arguments in order, as a list or a space-separated str: ``args``
            (all operands), ``rets`` (all results), ``args.0`` and ``rets.1`` (one of them),
            ``attrs.eps`` (an attribute of the call: a bool, int, float, str or list of numbers),
            and ``none`` (None). With a signature: the names in it. By default operands, results and
            parameters, in this order; a result in an operand's buffer is passed once.
        signature: the operands and results, as in kernel.h, without the target's name.
        parameters: with a signature, the other arguments: ``"eps: f64, mode: str"``.
        cuda_graph: whether calls may be captured into CUDA graphs: the function only enqueues work
            on its stream and requests no memory.

    Returns:
        The target, in a list.

    Raises:
        ImportError: apache-tvm-ffi is not installed.
        FileNotFoundError, OSError: as register_custom_call.
        AttributeError: the library has no such function; the text suggests similar ones.
        TypeError, ValueError: a wrong argument.
    """
    schema = None
    if signature is not None:
        schema = parse.parse(name, signature, parameters)
    elif parameters:
        raise TypeError(f"custom-call target {name!r}: parameters require a signature")
    words = _words(name, arguments, schema)
    _load_runtime(name)
    function = _handle(name, library, symbol)
    front = front_end.current()
    return front.register_tvm_ffi(name, platform, function, words, cuda_graph, library, schema)


def tvm_ffi_call(
    function: object,
    *args: object,
    outputs: Mapping[int, object] | Sequence[object] = (),
    aliases: Sequence[int] = (),
    cuda_graph: bool = False,
    sharding_rule: str | None = None,
) -> list[torch.Tensor]:
    """Call a TVM-FFI function on XLA tensors, as part of the XLA program.

    ::

        add = cute.compile(add, …, options="--enable-tvm-ffi")  # add(x, y, out, factor)
        (total,) = tvm_ffi_call(add, x, y, 2.0, outputs={2: x})

    The function is called as if `register_kernel` had registered it. Stored programs, and programs
    of several processes, need `register_kernel` instead, because they need a target whose name is
    the same everywhere.

    Args:
        function: a tvm_ffi.Function, or an object that wraps one, such as the result of
            `cute.compile` with ``options="--enable-tvm-ffi"``.
        args: its arguments without the outputs: XLA tensors, at least one, bools, ints, floats,
            strs, lists of numbers, and None.
        outputs: descriptions of the results, each a tensor or (shape, dtype), by their positions
            among the function's arguments; a list is for the last ones. The function receives them
            uninitialized.
        aliases: the positions, among the function's arguments, of the tensors that it writes to.
            XLA copies a tensor that is also used elsewhere.
        cuda_graph: as in `register_kernel`.
        sharding_rule: the dimensions of sharded tensors that devices may share, as in
            `define_operator`: of all tensors among `args`, and of the call's results. Each device
            calls the function with its parts. Numbers are the same on all devices; pass a number
            that depends on a divided size as a function of the list of all arguments, including
            outputs, with ArrayType for tensors: ``lambda args: args[0].shape[0]``. Without it,
            sharded tensors are gathered.

    Returns:
        The results, followed by the new values of the tensors that `aliases` names. They have no
        derivative.

    Raises:
        ImportError: apache-tvm-ffi is not installed.
        TypeError, ValueError: a wrong argument.
        RuntimeError: when the results are read, if the function failed; with the function's
            message.
    """
    if not isinstance(outputs, Mapping):
        outputs = dict(enumerate(outputs, len(args)))
    number = len(args) + len(outputs)
    rest = iter(args)
    try:
        given = [None if i in outputs else next(rest) for i in range(number)]
    except StopIteration:
        raise TypeError(
            f"tvm_ffi_call: outputs has {max(outputs)}, but the function receives {number} "
            "arguments"
        ) from None
    # For a call with a sharding rule: the arguments that depend on the size of a device's part.
    computed = [
        i
        for i, value in enumerate(given)
        if sharding_rule is not None and isinstance(value, FunctionType)
    ]
    words, operands, attributes, written = [], [], {}, {}
    for i, value in enumerate(given):
        if i in outputs:
            words.append(f"rets.{list(outputs).index(i)}")
        elif isinstance(value, torch.Tensor):
            words.append(f"args.{len(operands)}")
            if i in aliases:
                result = len(outputs) + list(aliases).index(i)
                words[-1], written[result] = f"rets.{result}", len(operands)
            operands.append(value)
        elif value is None:
            words.append("none")
        else:
            words.append(f"attrs.argument_{i}")
            attributes[f"argument_{i}"] = value
    if len(written) < len(aliases):
        raise TypeError(
            f"tvm_ffi_call: aliases must be positions of tensor arguments, but is {aliases}"
        )
    if not operands:
        raise TypeError("tvm_ffi_call: none of the function's arguments is an XLA tensor")
    if not outputs and not aliases:
        raise TypeError(
            "tvm_ffi_call: it has neither outputs nor aliases, so the call returns no tensor; pass "
            "one of them"
        )
    results = [ArrayType.of(value) for value in outputs.values()]
    results += [ArrayType.of(given[i]) for i in aliases]
    positions = [i for i, value in enumerate(given) if isinstance(value, torch.Tensor)]

    def attributes_of(
        inputs: Sequence[torch.Tensor], types: Sequence[ArrayType]
    ) -> dict[str, object]:
        arrays = dict(zip([*positions, *outputs], [*inputs, *types], strict=False))
        known = launches.computed([arrays.get(i, value) for i, value in enumerate(given)])
        return attributes | {f"argument_{i}": known[i] for i in computed}

    front = front_end.current()
    target = _target_of(function, front.platform(), words, cuda_graph)
    call = Call(Function(target, "tvm_ffi_call"), operands, results, attributes, written)
    call = call._replace(sharding_rule=sharding_rule)
    if computed:
        found = front.parts(
            "tvm_ffi_call", attributes_of, sharding_rule, operands, results, written
        )
        call = call._replace(parameters=attributes_of(operands, results))
        if found is not None:

            def local(inputs: Sequence[object], types: Sequence[object]) -> Call:
                return call._replace(results=types, parameters=found.at(inputs, types))

            call = call._replace(local=local, local_values=found)
    return front.launch(call)


def _target_of(function: object, platform: str, words: Sequence[str], cuda_graph: bool) -> str:
    key = _handle("tvm_ffi_call", function, None), platform, tuple(words), cuda_graph
    if key not in _targets:
        name = f"tvm_ffi_call_{_PROCESS}_{len(_targets)}"
        register_tvm_ffi_kernel(
            name, function, platform=platform, arguments=words, cuda_graph=cuda_graph
        )
        _targets[key] = name
    return _targets[key]


def _words(name: str, arguments: str | Sequence[str] | None, schema: Schema | None) -> list[str]:
    """Encode the arguments for csrc/launchers/tvm_ffi_arguments.h."""
    words = arguments.split() if isinstance(arguments, str) else arguments
    if schema is None:
        return ["args", "rets"] if words is None else list(words)
    if schema.has_layouts:
        raise ValueError(
            f"custom-call target {name!r}: a TVM-FFI function receives row-major arrays: its "
            "signature must not have layouts"
        )
    known = {a.name: f"args.{i}" for i, a in enumerate(schema.operands)}
    known |= {a.name: f"rets.{i}" for i, a in enumerate(schema.results)}
    known |= {p.name: f"attrs.{p.name}" for p in schema.parameters}
    if words is None:
        return list(known.values())
    for word in words:
        if word not in known and word != "none":
            raise ValueError(
                f"custom-call target {name!r}: argument {word!r} is not in the signature, which "
                f"has {', '.join(known)}"
            )
    if missing := [each for each in known if each not in words]:
        raise ValueError(
            f"custom-call target {name!r}: {missing[0]} is in the signature, but not among the "
            "arguments that are passed to the function"
        )
    return [known.get(word, word) for word in words]


def _load_runtime(name: str) -> None:
    """Load libtvm_ffi without importing the Python package, which may compile extensions."""
    spec = importlib.util.find_spec("tvm_ffi")
    folders = spec.submodule_search_locations if spec is not None else None
    files = [Path(folder, "lib", "libtvm_ffi.so") for folder in folders or ()]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise ImportError(
            f"custom-call target {name!r}: functions of TVM-FFI need libtvm_ffi, which is not "
            "installed; pip install apache-tvm-ffi",
            name="tvm_ffi",
        )
    try:
        front_end.current().load_tvm_ffi(str(found))
    except RuntimeError as error:
        raise ImportError(
            f"custom-call target {name!r}: {found} cannot be used: {error}; "
            "pip install --upgrade apache-tvm-ffi",
            name="tvm_ffi",
        ) from None


def _handle(name: str, library: object, symbol: str | None) -> int:
    """Return the function's object; it lives as long as the process."""
    if hasattr(library, "__tvm_ffi_object__"):
        library = library.__tvm_ffi_object__()
    if hasattr(library, "__chandle__"):  # a tvm_ffi.Function, whose package is imported
        if symbol is not None:
            raise TypeError(f"custom-call target {name!r}: symbol requires a library's path")
        if not library.__chandle__():
            raise ValueError(
                f"custom-call target {name!r}: the function was compiled for another GPU "
                "architecture"
            )
        return library.__chandle__()
    if not isinstance(library, (str, os.PathLike)):
        raise TypeError(
            f"custom-call target {name!r}: library must be a path or a tvm_ffi.Function, but is of "
            f"type {type(library).__name__}"
        )
    loaded, symbol = libraries.load(library)._name, symbol or name
    if (loaded, symbol) not in _functions:
        handle = front_end.current().tvm_ffi_function(loaded, symbol)
        if not handle:
            exported = [f for f in elf.exported_functions(Path(loaded)) if f.startswith(_PREFIX)]
            names = [function.removeprefix(_PREFIX) for function in exported]
            raise AttributeError(
                f"custom-call target {name!r}: {library} has no TVM-FFI function {symbol!r}"
                + libraries.alike(symbol, [n for n in names if not n.startswith("_")])
            )
        _functions[loaded, symbol] = handle
    return _functions[loaded, symbol]
