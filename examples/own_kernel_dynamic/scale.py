"""Call a kernel from your own library. README.md has the command that compiles it."""

import sys

import torch
import torch_xla

import torch_xla_ext


def main() -> None:
    torch_xla_ext.register_kernel("XlaGpuScale", sys.argv[1])
    x = torch.arange(6.0).reshape(2, 3)
    print("PJRT_DEVICE:", torch_xla.runtime.device_type())  # torch_xla's choice if it was not set
    (y,) = torch_xla_ext.custom_call("XlaGpuScale", [x.to("xla")], [x], attributes={"factor": 2.5})
    print(torch_xla_ext.debug.custom_calls(y))
    print(y.cpu())
    assert torch.equal(y.cpu(), x * 2.5)


if __name__ == "__main__":
    main()
