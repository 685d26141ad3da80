"""Export StableHLO under SPMD: calls refer to kernels by target, and cannot run in this process."""

from collections.abc import Callable

import torch
import torch_xla
from torch_xla import runtime

_XLAC = torch_xla._XLAC


def get_stablehlo(original: Callable[..., str | bytes]) -> Callable[..., str | bytes]:
    """Replace _get_stablehlo, which torch_xla.stablehlo and xm.get_stablehlo call."""

    def get(*args: object) -> str | bytes:
        _XLAC._xla_set_lowers_whole_calls(True)
        try:
            return original(*args)
        finally:
            _XLAC._xla_set_lowers_whole_calls(False)

    return get


def run_stablehlo(
    original: Callable[[bytes, list[torch.Tensor]], list[torch.Tensor]],
) -> Callable[[bytes, list[torch.Tensor]], list[torch.Tensor]]:
    """Replace _run_stablehlo, which a StableHLOGraphModule calls."""

    def run(program: bytes, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        if runtime.is_spmd():
            raise RuntimeError(
                "a StableHLOGraphModule runs on one device: call it in a process without use_spmd()"
            )
        return original(program, arguments)

    return run
