"""TransformerEngine-JAX's handlers, from its own library and by its own names, against torch.

It needs transformer_engine_jax and the library of transformer_engine, but neither JAX nor Flax.
"""

from types import ModuleType

import pytest
import torch

import torch_xla_ext

ROWS, WIDTH = 300, 1024


@pytest.fixture(scope="module")
def te() -> ModuleType:
    try:
        return torch_xla_ext.load_kernels("transformer_engine")
    except ImportError as error:
        pytest.skip(str(error))


def dtype_in(te: ModuleType, dtype: torch.dtype) -> object:
    names = {
        torch.float32: "kFloat32",
        torch.float16: "kFloat16",
        torch.bfloat16: "kBFloat16",
        torch.uint8: "kByte",
        torch.int64: "kInt64",
    }
    return getattr(te.DType, names[dtype])


def workspace(te: ModuleType, info: tuple[list[int], object]) -> tuple[list[int], torch.dtype]:
    """A result for a workspace, whose shape and dtype the library has returned."""
    shape, type_ = info
    for dtype in (torch.uint8, torch.float32, torch.int64):
        if int(dtype_in(te, dtype)) == int(type_):
            return list(shape), dtype
    raise AssertionError(f"a workspace of {type_}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_a_norm(te: ModuleType, kind: str, dtype: torch.dtype, device: torch.device) -> None:
    """A norm's handlers have the stages prepare, initialize and execute."""
    x = (torch.randn(ROWS, WIDTH) * 3 + 1).to(dtype)
    gamma, beta = torch.randn(WIDTH).to(dtype), torch.randn(WIDTH).to(dtype)
    wide = x.float()
    if kind == "LayerNorm":
        expected = torch.nn.functional.layer_norm(wide, (WIDTH,), gamma.float(), beta.float())
        spread = wide.var(1, correction=0)
    else:
        expected = torch.nn.functional.rms_norm(wide, (WIDTH,), gamma.float(), 1e-5)
        spread = wide.square().mean(1)
    operands = [t.to(device) for t in (x, torch.ones(1), torch.zeros(1), gamma, beta)]
    accuracy = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    for _ in range(2):
        forward = getattr(torch.ops.transformer_engine, f"{kind.lower()}_forward")
        output, _, _, _, _, _, sigma = forward(*operands, 1e-5)
        torch.testing.assert_close(output.cpu(), expected.to(dtype), **accuracy)
        torch.testing.assert_close(sigma.cpu(), (spread + 1e-5).rsqrt(), rtol=1e-4, atol=1e-5)
    if kind == "LayerNorm":
        output = torch.ops.transformer_engine.layernorm(operands[0], *operands[3:], 1e-5)
    else:
        output = torch.ops.transformer_engine.rmsnorm(operands[0], operands[3], 1e-5)
    torch.testing.assert_close(output.cpu(), expected.to(dtype), **accuracy)


def test_a_product(te: ModuleType, device: torch.device) -> None:
    """A product's attribute is a dictionary; its handlers have the stages prepare and execute."""
    lhs, rhs = torch.randn(ROWS, 256).bfloat16(), torch.randn(256, 512).bfloat16()
    bias = torch.randn(512).bfloat16()
    product = lhs.float() @ rhs.float()
    result = torch.ops.transformer_engine.gemm(lhs.to(device), rhs.to(device), bias.to(device))
    torch.testing.assert_close(result.cpu().float(), product + bias, rtol=1e-2, atol=0.1)
    result = torch.ops.transformer_engine.gemm(lhs.to(device), rhs.to(device))
    torch.testing.assert_close(result.cpu().float(), product, rtol=1e-2, atol=0.1)


def test_a_product_of_fp8(te: ModuleType, device: torch.device) -> None:
    lhs = (torch.randn(304, 256) * 8).to(torch.float8_e4m3fn)
    rhs = (torch.randn(512, 256) * 8).to(torch.float8_e4m3fn)
    bias = torch.randn(512).bfloat16()
    operands = lhs, torch.tensor([0.125]), rhs, torch.tensor([0.25]), bias
    result = torch.ops.transformer_engine.gemm_fp8(*(each.to(device) for each in operands))
    expected = lhs.float() * 0.125 @ (rhs.float() * 0.25).T + bias.float()
    torch.testing.assert_close(result.cpu().float(), expected, rtol=1e-2, atol=0.2)


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention(te: ModuleType, causal: bool, device: torch.device) -> None:
    """The attention is cuDNN's, whose handle the stage prepare creates."""
    batch, length, heads, width = 2, 256, 8, 64
    q, k, v = (torch.randn(batch, length, heads, width).bfloat16() for _ in range(3))
    mask = te.NVTE_Mask_Type.NVTE_CAUSAL_MASK if causal else te.NVTE_Mask_Type.NVTE_NO_MASK
    softmax = te.NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX
    layout, bias = te.NVTE_QKV_Layout.NVTE_BSHD_BSHD_BSHD, te.NVTE_Bias_Type.NVTE_NO_BIAS
    scale = width**-0.5
    window = (-1, 0) if causal else (-1, -1)
    info = te.get_fused_attn_fwd_workspace_sizes(
        *(batch, 0, length, length, heads, heads, 0, width, width, scale, 0.0),
        *(bias, mask, softmax, layout, dtype_in(te, q.dtype), False, 1, *window, False, False),
    )
    lengths = torch.arange(batch + 1, dtype=torch.int32) * length
    absent = torch.empty(0, dtype=torch.int32)
    no_bias, no_offset = torch.empty(0).bfloat16(), torch.empty(0)
    seed = torch.tensor([[1, 2]], dtype=torch.int32)
    operands = q, k, v, no_bias, no_offset, seed, lengths, lengths, *[absent] * 6
    output, *_ = torch_xla_ext.custom_call(
        "te_fused_attn_forward_ffi",
        [t.to(device) for t in operands],
        [
            (q.shape, q.dtype),
            ((batch, heads, length, 1), torch.float32),
            ((0,), torch.float32),
            ((1, 4), torch.int32),
            workspace(te, info),
        ],
        attributes={
            "input_batch": batch,
            "bias_batch": 0,
            "q_max_seqlen": length,
            "kv_max_seqlen": length,
            "attn_heads": heads,
            "num_gqa_groups": heads,
            "bias_heads": 0,
            "qk_head_dim": width,
            "v_head_dim": width,
            "max_segments_per_seq": 1,
            "scaling_factor": scale,
            "dropout_probability": 0.0,
            "bias_type": bias.value,
            "mask_type": mask.value,
            "softmax_type": softmax.value,
            "qkv_layout": layout.value,
            "is_training": False,
            "return_max_logit": False,
            "deterministic": True,
            "window_size_left": window[0],
            "window_size_right": window[1],
            "bottom_right_diagonal": False,
        },
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(t.float().transpose(1, 2) for t in (q, k, v)), is_causal=causal
    )
    torch.testing.assert_close(output.cpu().float(), expected.transpose(1, 2), rtol=2e-2, atol=2e-2)
