"""Split graphs of torch.compile that run partly on the host.

A graph may compute with host tensors, as PyTorch's optimizers do with their step counts, and may
have operators for which torch_xla has no kernel. Such a graph is split into stages that alternate
between the host and the device. PyTorch runs a host stage; a device stage is one program.
"""

from __future__ import annotations

import collections
import dataclasses
import operator
from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch.fx.passes.utils.fuser_utils import fuse_as_graphmodule
from torch.utils import _pytree as pytree

_Run = Callable[..., object]
_Compile = Callable[[torch.fx.GraphModule], _Run]


def nodes_on_host(graph: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """Return the nodes that compute CPU tensors, or no tensor."""
    return {node for node in graph.graph.nodes if _is_on_host(node)}


def other_device(graph: torch.fx.GraphModule, arguments: Iterable[object]) -> torch.device | None:
    """Return the other device of a graph with tensors on the CPU and on one other device.

    None if all arguments and operations are on one device.
    """
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    if not any(tensor.device.type == "cpu" for tensor in tensors):
        return None
    tensors += pytree.tree_leaves([node.meta.get("val") for node in graph.graph.nodes])
    devices = (tensor.device for tensor in tensors if isinstance(tensor, torch.Tensor))
    return next((device for device in devices if device.type != "cpu"), None)


def _is_on_host(node: torch.fx.Node) -> bool:
    """Return whether a node computes CPU tensors, or no tensor at all, such as a size."""
    if not node.op.startswith("call_"):
        return False
    if _written_arguments(node):  # copy_ returns what it wrote to
        return _is_cpu_tensor(_written_arguments(node)[0])
    values = pytree.tree_leaves(node.meta.get("val"))
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return all(tensor.device.type == "cpu" for tensor in tensors)


def _is_cpu_tensor(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _written_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False))
    given.update(node.kwargs)
    return [
        value
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for value in pytree.tree_leaves(given.get(argument.name))
        if isinstance(value, torch.fx.Node)
    ]


def split(
    graph: torch.fx.GraphModule,
    on_host: Collection[torch.fx.Node],
    host_stage: _Compile,
    device_stage: _Compile,
) -> _Run:
    """Return a function that runs the graph's stages, one after the other.

    Args:
        graph: the graph.
        on_host: its nodes that run on the host.
        host_stage: returns a function for the graph of a host stage. Its arguments may be tensors
            on the device.
        device_stage: the same for a device stage, whose arguments may be CPU tensors.
    """
    stages = [
        _Stage.of(graph, nodes, device_stage if number % 2 else host_stage, number % 2 == 1)
        for number, nodes in sorted(_by_stage(graph, set(on_host)).items())
    ]
    placeholders = graph.graph.find_nodes(op="placeholder")
    constants = {
        node: _attribute(graph, node.target) for node in graph.graph.find_nodes(op="get_attr")
    }
    (output,) = graph.graph.find_nodes(op="output")
    returned = output.args[0]
    kept = set(output.all_input_nodes)
    last_use = {node: i for i, stage in enumerate(stages) for node in stage.nodes()}
    ended: dict[int, list[torch.fx.Node]] = collections.defaultdict(list)
    for node, i in last_use.items():
        if node not in kept:
            ended[i].append(node)

    def run(*arguments: object) -> object:
        values = dict(zip(placeholders, arguments, strict=True)) | constants
        for i, stage in enumerate(stages):
            stage.run(values)
            for node in ended[i]:
                del values[node]
        return torch.fx.node.map_arg(returned, values.__getitem__)

    return run


def on_cpu(graph: torch.fx.GraphModule) -> _Run:
    """Return a function that runs a graph of CPU tensors, and first moves arguments to the CPU.

    Some operators that compute a CPU tensor from an XLA tensor, such as ``aten.copy``, return a
    tensor that PyTorch's functionalization still wraps.
    """

    def run(*arguments: object) -> object:
        return graph(*(a.cpu() if isinstance(a, torch.Tensor) else a for a in arguments))

    return run


def _attribute(graph: torch.fx.GraphModule, path: str) -> object:
    owner, _, name = path.rpartition(".")
    return getattr(graph.get_submodule(owner), name)


def _by_stage(
    graph: torch.fx.GraphModule, on_host: set[torch.fx.Node]
) -> dict[int, list[torch.fx.Node]]:
    """Return the nodes of each stage, in order: even ones on the host, odd ones on the device.

    A write is never in an earlier stage than preceding reads of the tensor or its views, nor than
    preceding checks, which are nodes without a result: after an error, nothing was written.
    """
    stage_of: dict[torch.fx.Node, int] = {}
    bases: dict[torch.fx.Node, set[torch.fx.Node]] = {}  # which a node may share memory with
    last_read: dict[torch.fx.Node, int] = collections.defaultdict(int)
    last_write: dict[torch.fx.Node, int] = collections.defaultdict(int)
    stages: dict[int, list[torch.fx.Node]] = collections.defaultdict(list)
    last_check = 0
    for node in graph.graph.nodes:
        if not node.op.startswith("call_"):
            bases[node] = {node}
            continue
        inputs = node.all_input_nodes
        read = set().union(*(bases[each] for each in inputs))
        written = set().union(*(bases[each] for each in _written_arguments(node)))
        bases[node] = read | {node} if _is_view(node) else {node}
        if node.target is operator.getitem and inputs[0] in stage_of:  # one of several results
            stage = stage_of[inputs[0]]
        else:
            earliest = [stage_of.get(each, 0) for each in inputs]
            earliest += [last_write[base] for base in read] + [last_read[base] for base in written]
            earliest += [last_check] if written else []
            stage = max(earliest, default=0)
            stage += (stage % 2 == 0) != (node in on_host)
        stage_of[node] = stage
        stages[stage].append(node)
        if node in on_host and not node.users and not written:
            last_check = max(stage, last_check)
        for base in read:
            last_read[base] = max(stage, last_read[base])
        for base in written:
            last_write[base] = stage
    return stages


def _is_view(node: torch.fx.Node) -> bool:
    """Return whether a node's result may share memory with an argument."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


@dataclasses.dataclass(frozen=True)
class _Stage:
    """A part of a graph that runs on the host, or on the device.

    Attributes:
        function: runs the stage.
        inputs: the nodes whose values it receives; a tuple of nodes is passed as one stacked
            tensor.
        outputs: the nodes whose values it returns.
    """

    function: _Run
    inputs: Sequence[torch.fx.Node | tuple[torch.fx.Node, ...]]
    outputs: Sequence[torch.fx.Node]

    @staticmethod
    def of(
        graph: torch.fx.GraphModule, nodes: list[torch.fx.Node], compile_: _Compile, on_device: bool
    ) -> _Stage:
        part, inputs, outputs = fuse_as_graphmodule(graph, nodes, "", always_return_tuple=True)
        taken = _stack_scalars(part, inputs) if on_device else inputs
        return _Stage(compile_(part), taken, outputs)

    def nodes(self) -> list[torch.fx.Node]:
        return [*pytree.tree_leaves(list(self.inputs)), *self.outputs]

    def run(self, values: dict[torch.fx.Node, object]) -> None:
        arguments = [
            torch.stack([values[node] for node in taken])
            if isinstance(taken, tuple)
            else values[taken]
            for taken in self.inputs
        ]
        with torch.no_grad():
            results = self.function(*arguments)
        if not isinstance(results, (list, tuple)):
            results = (results,)
        values.update(zip(self.outputs, results, strict=True))


def _stack_scalars(
    part: torch.fx.GraphModule, inputs: Sequence[torch.fx.Node]
) -> list[torch.fx.Node | tuple[torch.fx.Node, ...]]:
    """Make a device stage receive all 0-dimensional host tensors of a dtype as one tensor.

    Sending a tensor to the device takes some microseconds, and an optimizer may have one for each
    parameter.
    """
    scalars: dict[torch.dtype, list[int]] = collections.defaultdict(list)
    for i, node in enumerate(inputs):
        if _is_cpu_tensor(node) and node.meta["val"].ndim == 0:
            scalars[node.meta["val"].dtype].append(i)
    placeholders = part.graph.find_nodes(op="placeholder")
    stacked: list[tuple[torch.fx.Node, ...]] = []
    for dtype, indices in scalars.items():
        if len(indices) < 2:
            continue
        # At the front, because the other placeholders precede their first uses.
        with part.graph.inserting_before(next(iter(part.graph.nodes))):
            last = vector = part.graph.placeholder(f"stacked_{dtype}".replace("torch.", ""))
        for element, i in enumerate(indices):
            with part.graph.inserting_after(last):
                last = part.graph.call_function(torch.ops.aten.select.int, (vector, 0, element))
            placeholders[i].replace_all_uses_with(last)
            part.graph.erase_node(placeholders[i])
        stacked.insert(0, tuple(inputs[i] for i in indices))
    part.recompile()
    gone = set(pytree.tree_leaves(stacked))
    return [*stacked, *(node for node in inputs if node not in gone)]
