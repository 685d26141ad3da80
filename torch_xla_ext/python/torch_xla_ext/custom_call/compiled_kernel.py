"""Make the calls of xla_kernels, in programs of torch_xla or on a CUDA stream.

Triton kernels, kernels made with `cuda_kernel` and functions of TVM-FFI are called this way.
"""

import dataclasses
from collections.abc import Sequence

import torch
import torch_xla

from torch_xla_ext.custom_call.call import Local, custom_call, is_cacheable, parts, prepare
from xla_kernels.launch import TARGET, Call, Launch
from xla_kernels.signature.schema import ArrayType
from xla_kernels.traits import Traits

_XLAC = torch_xla._XLAC


def launch_is_cacheable() -> bool:
    """Return whether a prepared launch serves all operands with one _xla_call_key."""
    return is_cacheable(TARGET)


def launch(call: Call) -> list[torch.Tensor]:
    """Implement FrontEnd.launch."""
    return custom_call(
        call.launch.target, list(call.operands), list(call.results), **_keywords(call)
    )


def prepare_launch(call: Call) -> object:
    """Implement FrontEnd.prepare_launch."""
    target = call.launch.target
    return prepare(target, list(call.operands), list(call.results), **_keywords(call))


def _keywords(call: Call) -> dict[str, object]:
    return {
        "attributes": call.attributes(),
        "api": "ffi",
        "aliases": dict(call.aliases),
        "has_side_effect": call.has_side_effect,
        "sharding_rule": call.sharding_rule,
        "local": _local(call),
        "traits": Traits(
            operand_layouts=dict(call.operand_layouts),
            result_layouts=dict(call.result_layouts),
            num_hidden_results=int(call.num_hidden_results),
        ),
    }


def _local(call: Call) -> Local | None:
    if call.local is None:
        return None
    made, values = call.local, call.local_values
    if values is None:
        count = len(call.results) - call.num_hidden_results
        values = parts(
            call.launch.kernel,
            lambda *arrays: _Launched(call.local(*arrays)),
            call.sharding_rule,
            call.operands,
            call.results[:count],
            call.aliases,
        )
        if values is None:
            return None

        def made(*arrays: object) -> Call:
            return values.at(*arrays).call

    def arguments(
        inputs: Sequence[torch.Tensor], outputs: Sequence[ArrayType]
    ) -> dict[str, object]:
        own = made(inputs, outputs)
        return {"attributes": own.attributes(), "outputs": list(own.results)}

    return Local(arguments, values)


class _Launched:
    """A call with a short repr that identifies everything that the call depends on."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def __repr__(self) -> str:
        launch = dataclasses.replace(self.call.launch, module=b"")
        return f"{launch} {self.call.parameters} {self.call.results}"


def run(
    launch: Launch,
    operands: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    parameters: Sequence[str],
    stream: int,
) -> None:
    """Launch on a CUDA stream, with PyTorch's own CUDA tensors in the kernel's layouts."""
    addresses = ([tensor.data_ptr() for tensor in each] for each in (operands, results))
    launch_now(launch, parameters, *addresses, stream)


def launch_now(
    launch: Launch,
    parameters: Sequence[str],
    operands: Sequence[int],
    results: Sequence[int],
    stream: int,
) -> None:
    """Implement FrontEnd.launch_now."""
    _XLAC._xla_launch_compiled_kernel(
        attributes=launch.attributes(parameters),
        operands=list(operands),
        results=list(results),
        stream=stream,
    )
