"""Adds two tensors with the kernel XlaGpuSimpleAdd, which XLA calls by its name.

PJRT_DEVICE=CPU python examples/simple_add.py
"""

import struct

import torch
import torch_xla


def main() -> None:
    device = torch_xla.device()
    torch.manual_seed(0)
    a, b = torch.randn(2, 3), torch.randn(2, 3)

    # What the kernel has to know, since an untyped custom call hands it pointers only: the layout
    # of SimpleAddDescriptor in kernels/simple_add/simple_add.h, here f32 (11) and 6 elements.
    payload = struct.pack("<BBB5xq", 1, 1, 11, a.numel())
    (total,) = torch_xla._XLAC._xla_gpu_custom_call(
        [a.to(device), b.to(device)], payload, [a.shape], [a.dtype], target="XlaGpuSimpleAdd"
    )

    print(torch_xla._XLAC._get_xla_tensors_hlo([total]))
    print(total.cpu())
    assert torch.equal(total.cpu(), a + b), "XLA's sum is not torch's"
    print("equal to torch's sum")


if __name__ == "__main__":
    main()
