"""Programs that leave the process: StableHLO names kernels, also under SPMD."""

from __future__ import annotations

from collections.abc import Callable

import torch_xla

_XLAC = torch_xla._XLAC


def get_stablehlo(original: Callable[..., str | bytes]) -> Callable[..., str | bytes]:
    """_get_stablehlo, of torch_xla.stablehlo and xm.get_stablehlo."""

    def get(*args: object) -> str | bytes:
        _XLAC._xla_set_lowers_whole_calls(True)
        try:
            return original(*args)
        finally:
            _XLAC._xla_set_lowers_whole_calls(False)

    return get
