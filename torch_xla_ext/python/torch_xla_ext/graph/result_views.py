"""Return views of one tensor from a compiled function, as the original function does.

Each result of a program is a separate tensor. But a write to one result, by the caller or by code
after a graph break, must change the others that share its memory. So the program returns the base
tensor, and the views are created from it. If gradients are recorded, PyTorch does this itself.
"""

import operator
from collections.abc import Callable, Sequence

import torch

_Run = Callable[..., object]


def without_detached_arguments(graph: torch.fx.GraphModule) -> None:
    """Replace results that are an argument's detach() by the argument.

    PyTorch's wrapper makes them from the argument once more, and only reads the result's shape.
    """
    detach = torch.ops.aten.detach.default
    for node in graph.graph.find_nodes(op="call_function", target=detach):
        if node.args[0].op == "placeholder":
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.recompile()


def without_views(graph: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """Take results that are views of one tensor out of a graph.

    Args:
        graph: a graph without in-place operators, whose results are changed.

    Returns:
        A function that makes the graph's former results from its new ones; None if nothing changed.
    """
    (output,) = graph.graph.find_nodes(op="output")
    results = list(output.args[0])
    roots = {node: _root(node) for node in results if isinstance(node, torch.fx.Node)}
    shared = [root for root in roots.values() if root.op == "call_function"]
    views = [node for node, root in roots.items() if node is not root and shared.count(root) > 1]
    if not views:
        return None
    made = _with_their_views(views)
    needed = {source for node in made for source in node.all_input_nodes if source not in made}
    kept = dict.fromkeys(node for node in roots if node not in views)
    kept.update(dict.fromkeys(node for node in graph.graph.nodes if node in needed))
    remade = torch.fx.Graph()
    known = {node: remade.placeholder(node.name) for node in kept}
    for node in graph.graph.nodes:
        if node in made:
            known[node] = remade.node_copy(node, known.__getitem__)
    remade.output([known.get(node, node) for node in results])
    output.args = (tuple(kept),)
    for node in reversed(graph.graph.nodes):
        if node in made and not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return torch.fx.GraphModule({}, remade)


def keeping_views(compiled: _Run, remade: torch.fx.GraphModule) -> _Run:
    """Return a function of a list of arguments, like `compiled`, with the former results."""

    def run(arguments: list[object]) -> Sequence[object]:
        results = compiled(arguments)
        with torch.no_grad():
            return remade(*(results if isinstance(results, (list, tuple)) else [results]))

    run._boxed_call = True
    return run


def _viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the base of a node that is a view, or a list of views."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        parts = node.args[0]
        return parts if _viewed(parts) is not None else None
    return node.args[0] if getattr(node.target, "is_view", False) else None


def _root(node: torch.fx.Node) -> torch.fx.Node:
    while (viewed := _viewed(node)) is not None:
        node = viewed
    return node


def _with_their_views(views: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return the views, and the views from which they are made."""
    found = set()
    for node in views:
        while _viewed(node) is not None:
            found.add(node)
            node = _viewed(node)
    return found
