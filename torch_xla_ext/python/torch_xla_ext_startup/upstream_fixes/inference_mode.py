"""torch.inference_mode() computes without gradients, as torch.no_grad() does.

In PyTorch's inference mode, a functionalized tensor that was made outside, such as any XLA tensor,
cannot have views. So a Linear's ``weight.t()``, and with it each model, raised "Cannot set
version_counter for inference tensor".

Tensors that are made inside are ordinary ones, also on the CPU: they may be used in autograd later.
"""

import torch


class _WithoutGradients:
    """A replacement of torch._C._InferenceMode, which is active from construction on, too.

    torch._dynamo makes one and drops it, without entering it.
    """

    def __init__(self, is_enabled: bool) -> None:
        self._before: tuple[bool, bool] | None = (
            torch.is_grad_enabled(),
            torch._C._is_fwd_grad_enabled(),
        )
        _set_gradients(not is_enabled, not is_enabled)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            _set_gradients(*self._before)
            self._before = None

    def __del__(self) -> None:
        self.__exit__()


def _set_gradients(reverse: bool, forward: bool) -> None:
    torch._C._set_grad_enabled(reverse)
    torch._C._set_fwd_grad_enabled(forward)


def without_gradients(_: type) -> type:
    """Replace the context of torch.inference_mode() and torch.compile."""
    return _WithoutGradients
