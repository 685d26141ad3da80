"""Run a PyTorch operator inside an XLA program.

    PJRT_DEVICE=CPU python examples/launchers/torch_operator.py

On the CPU it runs PyTorch's CPU kernel, on a GPU its CUDA kernel. See docs/launchers.md.
"""

import os

import torch
import torch_xla

import torch_xla_ext

NAMES = {
    "CPU": "aten::_scaled_dot_product_flash_attention_for_cpu",
    "CUDA": "aten::_scaled_dot_product_flash_attention",
}


def main() -> None:
    device = torch_xla.device()
    name = NAMES[os.environ.get("PJRT_DEVICE", "CPU")]
    dtype = torch.float32 if name.endswith("cpu") else torch.bfloat16
    # [batch, num_heads, length, head_dim]
    query, key, value = (torch.randn(1, 4, 64, 32, dtype=dtype) for _ in range(3))

    # One call: XLA computes the operations around it, and PyTorch's kernel the attention.
    on_device = [tensor.to(device) for tensor in (query, key, value)]
    attended, logsumexp, *_ = torch_xla_ext.run_torch_operator(name, *on_device, is_causal=True)
    result = (attended * 2).cpu()

    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(result, expected * 2)
    print(f"{name}: {tuple(attended.shape)} and {tuple(logsumexp.shape)}, as PyTorch's")

    # Permanently: torch.ops accepts XLA tensors from now on, also under torch.compile.
    torch_xla_ext.register_torch_operator("aten::special_i0e")
    compiled = torch.compile(
        lambda x: torch.ops.aten.special_i0e(x) + 1, backend="openxla", fullgraph=True
    )
    x = torch.randn(8)
    torch.testing.assert_close(compiled(x.to(device)).cpu(), torch.special.i0e(x) + 1)
    print("aten::special_i0e: under torch.compile, as PyTorch's")


if __name__ == "__main__":
    main()
