"""Call the kernel that this example links into its own wheel of torch_xla."""

import torch
import torch_xla

import torch_xla_ext


def main() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    print("PJRT_DEVICE:", torch_xla.runtime.device_type())  # torch_xla's choice if it was not set
    (y,) = torch_xla_ext.custom_call("XlaGpuScale", [x.to("xla")], [x], attributes={"factor": 2.5})
    print(y.cpu())
    assert torch.equal(y.cpu(), x * 2.5)


if __name__ == "__main__":
    main()
