"""The ways to run a function on the device: "lazy", "captured", or compiled by "openxla"."""

from collections.abc import Callable

import torch

import torch_xla_ext


def run_by(way: str, function: Callable, fullgraph: bool = False) -> Callable:
    """Returns a callable that runs the function this way; `fullgraph` is for torch.compile."""
    if way == "captured":
        return torch_xla_ext.capture(function)
    if way == "openxla":
        torch._dynamo.reset()
        return torch.compile(function, backend="openxla", fullgraph=fullgraph)
    assert way == "lazy", way
    return function
