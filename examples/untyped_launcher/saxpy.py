"""Define an operator for a launcher with the signature of XLA's tutorials.

    PJRT_DEVICE=CPU python saxpy.py ./libsaxpy_host.so

The launcher receives pointers and a payload, but no shapes and dtypes. So Python checks everything
that the launcher relies on.
"""

import argparse
import struct

import torch
import torch_xla

import torch_xla_ext


def check(x: torch.Tensor, y: torch.Tensor, **others: object) -> None:
    for tensor in (x, y):
        if tensor.dtype != torch.float32:
            raise TypeError(f"my_ns::saxpy: expected float32 but got {tensor.dtype}")
    if x.shape != y.shape:
        raise ValueError(f"my_ns::saxpy: x is {list(x.shape)} but y is {list(y.shape)}")


def define(library: str) -> None:
    if torch_xla.runtime.device_type() == "CPU":
        torch_xla_ext.register_custom_call("LegacySaxpy", library, platform="Host")
    else:
        torch_xla_ext.register_cuda_custom_call("LegacySaxpy", library)
    torch_xla_ext.define_operator(
        "my_ns::saxpy(Tensor x, Tensor y, float a) -> Tensor",
        target="LegacySaxpy",
        check=check,
        results=lambda x, y, a: [(x.shape, x.dtype)],
        payload=lambda x, y, a: struct.pack("<qf4x", x.numel(), a),  # struct SaxpyArguments
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", help="the launcher's .so file")
    define(parser.parse_args().library)
    x, y = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
    out = torch.ops.my_ns.saxpy(x.to("xla"), y.to("xla"), 2.5)
    print(torch_xla_ext.debug.custom_calls(out)[0])
    print(out.cpu())
    assert torch.equal(out.cpu(), 2.5 * x + y)


if __name__ == "__main__":
    main()
