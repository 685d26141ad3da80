"""The built wheel runs a kernel (placeholder for the lead's behaviour tests)."""

import torch
import torch_xla


def test_simple_add() -> None:
    device = torch_xla.device()
    a = torch.tensor([1.0, 2.0, 3.0], device=device)
    b = torch.tensor([4.0, 5.0, 6.0], device=device)
    (out,) = torch_xla._XLAC._xla_gpu_custom_call(
        [a, b], "3", [[3]], [torch.float32], target="XlaGpuSimpleAdd"
    )
    assert torch.equal(out.cpu(), torch.tensor([5.0, 7.0, 9.0]))
