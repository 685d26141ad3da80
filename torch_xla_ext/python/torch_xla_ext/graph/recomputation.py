"""Order the recomputations in backward graphs of torch.compile.

PyTorch puts the operations of a region of torch.utils.checkpoint right before the gradients that
need them. XLA orders operations only by their operands. It would recompute all regions first, and
all their activations would be in memory at the same time.
"""

import operator
from collections.abc import Iterable

import torch
import torch_xla
from torch import fx

_XLAC = torch_xla._XLAC


def order_regions(graph: fx.GraphModule) -> None:
    """Make each region of a backward graph wait for the gradient that enters it.

    The region's inputs pass through an optimization barrier together with this gradient, and with
    the parameters' gradients of the region before the previous one: on several devices, XLA would
    otherwise compute all such gradients at the end. The previous region's gradients are not in the
    barrier, so that they are communicated while this region is computed.
    """
    nodes = list(graph.graph.nodes)
    gradients = _users_of(node for node in nodes if node.name.startswith("tangents_"))
    regions: dict[int, list[fx.Node]] = {}
    for node in nodes:
        region = node.meta.get("ac_graph_id")
        if region is not None and node.op == "call_function" and node not in gradients:
            regions.setdefault(region, []).append(node)
    (output,) = (node for node in nodes if node.op == "output")
    computed: list[list[fx.Node]] = []  # by each region, of the parameters' gradients
    for members in regions.values():
        dependent = _users_of(members)
        computed.append([n for n in output.all_input_nodes if n in gradients & dependent])
        for earlier in computed[:-1]:
            earlier[:] = (node for node in earlier if node not in dependent)
        if (entering := _entering(nodes, gradients, dependent)) is not None:
            waited = [entering, *(computed[-3] if len(computed) > 2 else [])]
            _delay(graph.graph, members, dependent, waited)
    if regions:
        graph.graph.lint()
        graph.recompile()


def _users_of(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the nodes, and all that depend on one of them."""
    left = list(nodes)
    found = set(left)
    while left:
        for user in left.pop().users:
            if user not in found:
                found.add(user)
                left.append(user)
    return found


def _entering(
    nodes: list[fx.Node], gradients: set[fx.Node], dependent: set[fx.Node]
) -> fx.Node | None:
    """Return the gradient by which the first result of a region is multiplied."""
    for node in nodes:
        if node in gradients and node in dependent:
            for operand in node.all_input_nodes:
                if operand in gradients and operand not in dependent:
                    return operand
    return None


def _delay(
    graph: fx.Graph, members: list[fx.Node], dependent: set[fx.Node], waited: list[fx.Node]
) -> None:
    """Make the members' inputs depend on other nodes.

    Args:
        graph: the graph.
        members: the nodes of a region.
        dependent: the members, and all nodes that depend on them.
        waited: nodes that do not.
    """
    inputs = dict.fromkeys(
        operand
        for node in members
        for operand in node.all_input_nodes
        if operand not in dependent and isinstance(operand.meta.get("val"), torch.Tensor)
    )
    operands = [*inputs, *waited]
    order = {node: i for i, node in enumerate(graph.nodes)}
    last = max(operands, key=order.__getitem__)
    early = [node for node in dependent if node in order and order[node] < order[last]]
    with graph.inserting_after(last):
        place = barrier = graph.call_function(_barrier, (operands,))
    for i, operand in enumerate(inputs):
        with graph.inserting_after(place):
            place = graph.call_function(operator.getitem, (barrier, i))
        place.meta["val"] = operand.meta["val"]
        for node in members:
            node.replace_input_with(operand, place)
    for node in sorted(early, key=order.__getitem__, reverse=True):
        place.append(node)


def _barrier(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies that XLA computes after all of the tensors."""
    if any(tensor.device.type != "xla" for tensor in tensors):
        return tensors
    copies = [tensor.clone() for tensor in tensors]
    _XLAC._xla_optimization_barrier_(copies)
    return copies
