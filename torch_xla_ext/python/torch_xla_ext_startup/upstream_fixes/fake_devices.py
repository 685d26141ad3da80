"""Give fake tensors on "xla" a device index, as PyTorch does for CUDA.

Otherwise functions that are traced, also by while_loop, refuse ``x + torch.arange(3,
device="xla")``, whose operands are on "xla:0" and "xla".
"""

from collections.abc import Callable

import torch
import torch_xla


def new_fake_tensor(original: Callable[..., torch.Tensor]) -> staticmethod:
    """Replace FakeTensor.__new__."""

    def new(
        cls: type,
        mode: object,
        elem: torch.Tensor,
        device: torch.device | str,
        *args: object,
        **options: object,
    ) -> torch.Tensor:
        if torch.device(device) == torch.device("xla"):
            is_running = torch_xla._XLAC._xla_runtime_is_initialized()  # which this must not start
            device = torch_xla.device() if is_running else torch.device("xla", 0)
        return original(cls, mode, elem, device, *args, **options)

    return staticmethod(new)
