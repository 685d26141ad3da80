r"""Run vLLM's own CUDA operators in one XLA program: its RMSNorm and its FlashAttention 3.

    PJRT_DEVICE=CUDA PJRT_ALLOCATOR_FRACTION=0.5 \
        python examples/launchers/vllm_operators.py

It needs vLLM 0.11.0 (integrations/vllm/install.py), torch with CUDA, and a GPU that FlashAttention
3 supports, such as an H100. See docs/launchers.md.
"""

import torch
import torch_xla
import vllm._C  # defines torch.ops._C  # noqa: F401
from vllm.vllm_flash_attn import flash_attn_varlen_func

import torch_xla_ext

HEADS, HEAD_DIM, EPSILON = 8, 128, 1e-6
LENGTHS = (100, 37, 256)


# The operator itself has 35 arguments; vLLM's function fills them in.
@torch.library.custom_op("vllm_example::attention", mutates_args=())
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, longest: int
) -> torch.Tensor:
    """Compute causal attention of several sequences, all [num_tokens, num_heads, head_dim]."""
    return flash_attn_varlen_func(
        q, k, v, longest, cu_seqlens, longest, cu_seqlens, causal=True, fa_version=3
    )


@attention.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, longest: int
) -> torch.Tensor:
    return torch.empty_like(q)


def normed_attention(
    x: torch.Tensor, weight: torch.Tensor, cu_seqlens: torch.Tensor
) -> torch.Tensor:
    """Return [num_tokens, HEADS * HEAD_DIM] for x [num_tokens, 3 * HEADS * HEAD_DIM]."""
    normed = torch.empty_like(x)
    torch.ops._C.rms_norm(normed, x, weight, EPSILON)
    q, k, v = normed.unflatten(-1, (3, HEADS, HEAD_DIM)).unbind(1)
    return torch.ops.vllm_example.attention(q, k, v, cu_seqlens, max(LENGTHS)).flatten(1)


def expected_attention(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Compute the same with PyTorch operations."""
    normed = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPSILON)
    parts = normed.unflatten(-1, (3, HEADS, HEAD_DIM)).split(LENGTHS)
    results = [
        torch.nn.functional.scaled_dot_product_attention(*part.permute(1, 2, 0, 3), is_causal=True)
        for part in parts
    ]
    return torch.cat([result.transpose(0, 1) for result in results]).flatten(1)


def main() -> None:
    for name in ("_C::rms_norm", "vllm_example::attention"):
        torch_xla_ext.register_torch_operator(name)
    device = torch_xla.device()
    x = torch.randn(sum(LENGTHS), 3 * HEADS * HEAD_DIM).bfloat16()
    weight = torch.rand(x.shape[1]).bfloat16()
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    operands = [tensor.to(device) for tensor in (x, weight, cu_seqlens)]
    expected = expected_attention(x.float(), weight.float())

    result = normed_attention(*operands)
    torch.testing.assert_close(result.cpu().float(), expected, rtol=2e-2, atol=2e-2)
    print(f"lazy: {tuple(result.shape)}, as PyTorch's")

    compiled = torch.compile(normed_attention, backend="openxla", fullgraph=True)
    result = compiled(*operands)
    torch.testing.assert_close(result.cpu().float(), expected, rtol=2e-2, atol=2e-2)
    print("under torch.compile: as PyTorch's")


if __name__ == "__main__":
    main()
