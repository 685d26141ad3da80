"""Add two tensors with the kernel XlaGpuSimpleAdd, which XLA calls by its name.

PJRT_DEVICE=CPU python examples/simple_add.py
"""

import torch
import torch_xla

import torch_xla_ext


def main() -> None:
    torch.manual_seed(0)
    device = torch_xla.device()
    print("PJRT_DEVICE:", torch_xla.runtime.device_type())  # torch_xla's choice if it was not set
    a, b = torch.randn(2, 3), torch.randn(2, 3)

    # The kernel's signature is in kernels/simple_add/simple_add.h.
    (total,) = torch_xla_ext.custom_call("XlaGpuSimpleAdd", [a.to(device), b.to(device)], [a])

    print(torch_xla_ext.debug.custom_calls(total)[0])
    print(total.cpu())
    assert torch.equal(total.cpu(), a + b), "XLA's sum is not torch's"
    print("equal to torch's sum")


if __name__ == "__main__":
    main()
