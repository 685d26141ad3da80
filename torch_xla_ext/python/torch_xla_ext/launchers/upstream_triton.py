"""Replace torch_xla.experimental.triton, without jaxlib and two silent errors of upstream.

Upstream's version launches every kernel with four warps, even if it was compiled for another
number, and passes a Python float as fp64 where Triton compiled fp32. A script that uses upstream's
version runs unchanged::

    payload = xla_triton.triton_call(x, y, output, size, kernel=add_kernel, grid=grid, BLOCK_SIZE=8)
    (output,) = torch_xla._XLAC._xla_gpu_custom_call([x, y], payload, [shape], [torch.int64])

torch_xla_ext.triton_call does the same in one call, also under torch.compile.
"""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch_xla

from xla_kernels.launch import Grid
from xla_kernels.triton.triton_call import triton_call as call_kernel

# A kernel under @triton.jit.
Kernel = Any
_TARGET = "triton_kernel_call"


class Payload(bytes):
    """A kernel with its arguments, whose tensors _xla_gpu_custom_call replaces by the call's."""

    kernel: Kernel
    grid: Grid
    values: dict[str, object]
    options: dict[str, object]

    def call(
        self,
        inputs: Sequence[torch.Tensor],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[torch.dtype],
        target: str,
        aliases: Mapping[int, int] | None,
    ) -> list[torch.Tensor]:
        """Make the call that this payload describes; return its results.

        The inputs and then the outputs are the kernel's tensors, in its order.

        Raises:
            TypeError, ValueError: the tensors differ from those that the payload was made for.
        """
        name = self.kernel.fn.__name__
        tensors = {k: v for k, v in self.values.items() if isinstance(v, torch.Tensor)}
        if target != _TARGET or aliases:
            raise ValueError(
                f"_xla_gpu_custom_call: the payload is a call of the Triton kernel {name}, which "
                "takes neither a target nor aliases; torch_xla_ext.triton_call takes aliases"
            )
        if len(tensors) != len(inputs) + len(output_shapes):
            raise ValueError(
                f"_xla_gpu_custom_call: the Triton kernel {name} was given the tensors "
                f"{', '.join(tensors)}, but there are {len(inputs)} inputs and "
                f"{len(output_shapes)} outputs"
            )
        types = [value.dtype for value in inputs] + list(output_dtypes)
        for (key, tensor), dtype in zip(tensors.items(), types, strict=True):
            if tensor.dtype != dtype:
                raise TypeError(
                    f"_xla_gpu_custom_call: the Triton kernel {name} was given {key} as "
                    f"{tensor.dtype}, but it is {dtype}"
                )
        names = list(tensors)
        outputs = dict(
            zip(names[len(inputs) :], zip(output_shapes, output_dtypes, strict=True), strict=True)
        )
        given = dict(zip(names, inputs, strict=False))
        values = {k: given.get(k, v) for k, v in self.values.items() if k not in outputs}
        return call_kernel(self.kernel, grid=self.grid, outputs=outputs, **values, **self.options)


def triton_call(
    *args: torch.Tensor | bool | int | float | np.float32,
    kernel: Kernel,
    grid: Grid,
    debug: bool = False,
    **metaparams: object,
) -> Payload:
    """Return the payload for torch_xla._XLAC._xla_gpu_custom_call.

    Args:
        args: the kernel's first arguments: numbers, and tensors, inputs before outputs.
        kernel: a @triton.jit function.
        grid: one to three numbers of blocks, or a function of the arguments by name.
        debug: ignored; in upstream's version it enables printing.
        metaparams: the kernel's constants, and Triton's options.
    """
    parameters = list(inspect.signature(kernel.fn).parameters)
    if len(args) > len(parameters):
        raise TypeError(
            f"{kernel.fn.__name__}: {len(args)} arguments, but its parameters are {parameters}"
        )
    payload = Payload(b"torch_xla_ext: a Triton kernel, for torch_xla._XLAC._xla_gpu_custom_call")
    payload.kernel, payload.grid = kernel, grid
    payload.values = {
        name: float(value) if isinstance(value, np.floating) else value
        for name, value in zip(parameters, args, strict=False)
    }
    payload.options = metaparams
    return payload


def _register_jaxlibs_target() -> None:
    """Register the target for payloads that jaxlib made, if its plugin is installed.

    Upstream's module does the same, for one CUDA version.
    """
    for plugin in ("jax_cuda13_plugin", "jax_cuda12_plugin"):
        try:
            target = importlib.import_module(f"{plugin}._triton").get_custom_call()
        except ImportError:
            continue
        torch_xla._XLAC._xla_register_custom_call_target(_TARGET, target, "CUDA")
        return


_register_jaxlibs_target()
