"""Fix torch_xla's and PyTorch's code for ``torch.compile(backend="openxla")``.

torch_xla_ext.graph.compiled_graph compiles and runs graphs, in place of torch_xla 2.8's bridge to
Dynamo.

If arguments share memory and the function writes to one of them, PyTorch derives all of them from
one argument by their strides and offsets. torch_xla's tensors have no strides and offsets, so the
views would be wrong. Such a function is not compiled.
"""

import collections
import functools
import logging
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch_xla
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

from torch_xla_ext_startup.upstream_fixes import decompositions
from xla_kernels.replacement import temporarily_replaced

if TYPE_CHECKING:
    from torch._dynamo.variables.optimizer import OptimizerVariable

# docs/debugging.md documents this name, so programs may have configured the logger.
_log = logging.getLogger("torch_xla_ext.openxla")

# Operators that only raise errors, which a trace would leave out, because nothing uses a result.
_CHECKS = frozenset(
    {
        torch.ops.aten._assert_async.default,
        torch.ops.aten._assert_async.msg,
        torch.ops.aten._linalg_check_errors.default,
    }
)


def function_of_bridge(original: Callable[..., object]) -> Callable[..., object]:
    """Replace a function of torch_xla._dynamo.dynamo_bridge."""
    return _functions_of_bridge()[original.__name__]


@functools.cache
def _functions_of_bridge() -> dict[str, Callable[..., object]]:
    """Return the replacements by name; they are made when all originals exist."""
    from torch_xla._dynamo import dynamo_bridge as module

    from torch_xla_ext.graph.compiled_graph import CompiledGraph, are_supported
    from torch_xla_ext.graph.shared_memory import SharedMemory
    from torch_xla_ext.graph.split_graph import nodes_on_host, on_cpu, other_device, split
    from torch_xla_ext.graph.traced_program import same_seed
    from torch_xla_ext.graph.value_checks import add_checks

    upstream, upstream_parts = module.extract_internal, module.partition_fx_graph_for_cpu_fallback
    upstream_helper, moved = (
        module.extract_compiled_graph_helper,
        module._maybe_move_tensors_to_device,
    )

    memory: SharedMemory | None = None  # of the arguments of the graph that is being compiled

    @same_seed()
    def extract_compiled_graph_helper(
        graph: torch.fx.GraphModule, arguments: Sequence[object]
    ) -> Callable[..., object]:
        device = other_device(graph, arguments)
        if device is not None:
            on_device_of_others = functools.partial(compile_when_called, device=device)
            if on_host := nodes_on_host(graph):
                return split(graph, on_host, on_cpu, on_device_of_others)
            if _devices(arguments) == {"cpu"}:  # torch_xla would return CPU tensors
                return on_device_of_others(graph)
        return extract(graph, arguments)

    def extract(graph: torch.fx.GraphModule, arguments: Sequence[object]) -> Callable[..., object]:
        nonlocal memory
        memory = SharedMemory.of(graph, arguments)
        try:
            if memory is not None:
                memory.move(graph)
                return upstream_helper(graph, tuple(memory.views(arguments)))
            if _devices(arguments) == {"cpu"}:
                warnings.warn(
                    "a function of CPU tensors is not compiled, because XLA uses another device; "
                    "move the tensors to it",
                    stacklevel=2,
                )
                return on_cpu(graph)
            return upstream_helper(graph, on_device(arguments))
        finally:
            memory = None

    def compile_when_called(
        graph: torch.fx.GraphModule, device: torch.device
    ) -> Callable[..., object]:
        compiled: Callable[..., object] | None = None

        def run(*arguments: object) -> object:
            nonlocal compiled
            arguments = tuple(
                a.to(device) if isinstance(a, torch.Tensor) and a.device.type == "cpu" else a
                for a in arguments
            )
            if compiled is None:
                with torch_xla.experimental.eager_mode_context(False):
                    compiled = extract(graph, arguments)
            return compiled(*arguments)

        return run

    def extract_internal(graph: torch.fx.GraphModule) -> Callable[..., object]:
        # torch_xla keeps a graph's first arguments: for a backward graph, all activations.
        vars(graph).pop("xla_args", None)
        if memory is not None:
            return CompiledGraph(graph, memory).run
        run_upstreams: Callable[..., object] | None = None
        compiled = CompiledGraph(graph)

        def run(*arguments: object) -> object:
            nonlocal run_upstreams
            result = compiled.run(*arguments)
            if result is not NotImplemented:
                return result
            arguments = on_device(arguments)
            result = compiled.run(*arguments)
            if result is not NotImplemented:
                return result
            if run_upstreams is None:
                graph.xla_args = arguments
                if module._args_on_cuda(arguments):
                    graph.xla_args = moved(arguments, torch_xla.device())
                run_upstreams = upstream(graph)
            return run_upstreams(*arguments)

        return run

    def partition_fx_graph_for_cpu_fallback(
        graph: torch.fx.GraphModule, arguments: Sequence[object], *others: object
    ) -> Callable[..., object]:
        if not are_supported(arguments):
            return upstream_parts(graph, arguments, *others)
        on_host = _nodes_without_kernel(graph, arguments, module.UnsupportedNodesCollector)
        on_host |= {node for node in graph.graph.nodes if node.target in _CHECKS}
        on_host |= add_checks(graph)
        if not on_host:
            return extract_internal(graph)
        return split(graph, on_host, lambda part: part, extract_internal)

    functions = (
        extract_compiled_graph_helper,
        extract_internal,
        partition_fx_graph_for_cpu_fallback,
    )
    return {function.__name__: function for function in functions}


def on_device(arguments: Sequence[object]) -> tuple[object, ...]:
    """Return the arguments; if some are XLA tensors, CPU tensors are moved to the XLA device."""
    if _devices(arguments) != {"cpu", "xla"}:
        return tuple(arguments)
    device = torch_xla.device()
    return tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments)


def _devices(arguments: Sequence[object]) -> set[str]:
    return {a.device.type for a in arguments if isinstance(a, torch.Tensor)}


def _nodes_without_kernel(
    graph: torch.fx.GraphModule, arguments: Sequence[object], collector_type: type
) -> set[torch.fx.Node]:
    """Return the operators that torch_xla runs on the host. The arguments are not changed."""
    from torch_xla_ext.graph.traced_program import Trace
    from torch_xla_ext.graph.traced_tensors import tracing

    with tracing([argument for argument in arguments if isinstance(argument, torch.Tensor)]):
        trace = Trace(arguments)
        trace.begin()
        try:
            collector = collector_type(graph)
            with torch.no_grad():
                collector.run(*arguments)
        finally:
            trace.undo(arguments)
            trace.end()
    return set(collector.get_unsupported_nodes())


class _SharedMemoryError(Exception):
    """Arguments of a function share memory, and the function writes to one of them."""


@functools.cache
def openxla_backend(original: Callable[..., object]) -> Callable[..., object]:
    """Replace torch._dynamo.backends.torchxla.openxla."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import partitioners
    from torch._functorch._aot_autograd import runtime_wrappers
    from torch._inductor import config as inductor_config
    from torch.multiprocessing.reductions import StorageWeakRef

    def inference_compiler(graph: torch.fx.GraphModule, inputs: Sequence[object]) -> object:
        from torch_xla_ext.graph.result_views import (
            keeping_views,
            without_detached_arguments,
            without_views,
        )

        without_detached_arguments(graph)
        remade = without_views(graph)
        compiled = original.kwargs["fw_compiler"](graph, inputs)
        return compiled if remade is None else keeping_views(compiled, remade)

    def backward_compiler(graph: torch.fx.GraphModule, inputs: Sequence[object]) -> object:
        from torch_xla_ext.graph.recomputation import order_regions

        order_regions(graph)
        return original.kwargs["fw_compiler"](graph, inputs)

    merge = runtime_wrappers.merge_view_inputs
    upstream = aot_autograd(
        **original.kwargs,
        inference_compiler=inference_compiler,
        # Recomputes cheap activations; the default partitioner saves all.
        partition_fn=partitioners.min_cut_rematerialization_partition,
        # Writes to the function's arguments are part of its program, too.
        keep_inference_input_mutations=True,
    )

    def merge_view_inputs(
        config: object, inputs: Sequence[object], infos: Sequence[Any], **options: object
    ) -> object:
        writes = collections.defaultdict(list)  # by storage
        for value, info in zip(inputs, infos, strict=True):
            if isinstance(value, torch.Tensor) and value.device.type == "xla":
                writes[StorageWeakRef(value.untyped_storage())].append(info.mutates_data)
        if any(len(written) > 1 and any(written) for written in writes.values()):
            raise _SharedMemoryError
        return merge(config, inputs, infos, **options)

    def openxla(graph: torch.fx.GraphModule, inputs: Sequence[object], **options: object) -> object:
        from torch_xla_ext.graph.argument_strides import compiled_by_strides

        return compiled_by_strides(
            lambda inputs: compile_for(graph, inputs, **options), graph, inputs
        )

    def compile_for(
        graph: torch.fx.GraphModule, inputs: Sequence[object], **options: object
    ) -> Callable[..., object]:

        # torch wraps it once more in each compilation: RecursionError after a few hundred.
        upstream.kwargs["bw_compiler"] = backward_compiler
        with (
            decompositions.traced_for_xla(upstream.kwargs, inputs),
            # Otherwise an operator that writes to views would receive views of plain XLA tensors,
            # which are copies.
            inductor_config.patch(enable_auto_functionalized_v2=False),
            temporarily_replaced(runtime_wrappers, "merge_view_inputs", merge_view_inputs),
            temporarily_replaced(partitioners, "has_recomputable_rng_ops", _save_random_numbers),
            temporarily_replaced(
                torch.fx.node,
                "_side_effectful_functions",
                torch.fx.node._side_effectful_functions | _CHECKS,
            ),
        ):
            try:
                return upstream(graph, inputs, **options)
            except _SharedMemoryError:
                _log.warning(
                    "a function is not compiled, but runs lazily: it writes to one of its "
                    "arguments that share memory; pass a clone() of the others, or make the views "
                    "inside"
                )
                return graph

    openxla._tags = original._tags  # torch._dynamo.list_backends() reads them
    return openxla


def inductor(original: Callable[..., object]) -> Callable[..., object]:
    """Give graphs with XLA tensors to openxla if torch.compile has no backend or inductor."""

    @functools.wraps(original)
    def compile_fx(
        graph: torch.fx.GraphModule, inputs: Sequence[object], *args: object, **options: object
    ) -> object:
        nodes = [node.meta.get("example_value") for node in graph.graph.nodes]
        if any(
            isinstance(value, torch.Tensor) and value.device.type == "xla"
            for value in pytree.tree_leaves([inputs, nodes])
        ):
            return torch._dynamo.lookup_backend("openxla")(graph, inputs)
        return original(graph, inputs, *args, **options)

    return compile_fx


def move_steps_to_cuda_only(
    original: Callable[["OptimizerVariable"], None],
) -> Callable[["OptimizerVariable"], None]:
    """Leave an optimizer's step counts where they are if its parameters are on XLA devices.

    Dynamo replaces counts on the host by copies on the device, each time that it traces a group of
    parameters: a graph may already write to the host's, NAdam multiplies others there, and a state
    dict that was loaded holds them. On CUDA, Dynamo makes all of them on the device.
    """

    def move_step_if_cpu(optimizer: "OptimizerVariable") -> None:
        if not any(p.device.type == "xla" for p in optimizer.value.state):
            original(optimizer)

    return move_step_if_cpu


def _save_random_numbers(joint_graph: torch.fx.GraphModule) -> bool:
    """Return False, so that random numbers are saved and not drawn a second time.

    PyTorch draws them again when a checkpoint recomputes, with an operator that XLA tensors lack.
    """
    for node in joint_graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            elements = [user for user in node.users if user.target is operator.getitem]
            for saved in (node, *elements):
                saved.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return False
