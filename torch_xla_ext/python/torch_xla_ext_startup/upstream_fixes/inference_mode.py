"""Make torch.inference_mode() compute without gradients, as torch.no_grad() does.

In PyTorch's inference mode, a functionalized tensor that was created outside, such as any XLA
tensor, cannot have views. So ``weight.t()`` in a Linear layer, and with it every model, raises
"Cannot set version_counter for inference tensor".

Here tensors that are created in inference mode, also on the CPU, are ordinary tensors, which
autograd may use later.
"""

import torch


class _WithoutGradients:
    """A replacement of torch._C._InferenceMode; like it, active from its construction on.

    torch._dynamo constructs and drops one without entering it.
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
