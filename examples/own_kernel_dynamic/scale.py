"""Call a kernel from your own library. README.md has the command that compiles it."""

import argparse

import torch
import torch_xla

import torch_xla_ext


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", help="the kernel's .so file")
    torch_xla_ext.register_kernel("XlaGpuScale", parser.parse_args().library)
    x = torch.arange(6.0).reshape(2, 3)
    print("PJRT_DEVICE:", torch_xla.runtime.device_type())  # torch_xla's choice if it was not set
    (y,) = torch_xla_ext.custom_call("XlaGpuScale", [x.to("xla")], [x], attributes={"factor": 2.5})
    print(torch_xla_ext.debug.custom_calls(y))
    print(y.cpu())
    assert torch.equal(y.cpu(), x * 2.5)


if __name__ == "__main__":
    main()
