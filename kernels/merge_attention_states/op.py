"""Merge attention over two sets of tokens, for a shared prefix or a split context."""

import torch

__all__ = ["merge_attention_states"]

_NAME = "xla_gpu::merge_attention_states"
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def _require(
    condition: bool | torch.SymBool, error: type[Exception], name: str, what: str, came: object
) -> None:
    if not condition:
        raise error(f"{_NAME}: {name}: expected {what} but got {came}")


def _check(
    output_a: torch.Tensor, lse_a: torch.Tensor, output_b: torch.Tensor, lse_b: torch.Tensor
) -> None:
    _require(
        output_a.dtype in _DTYPES,
        TypeError,
        "output_a",
        "dtype torch.float16, torch.bfloat16 or torch.float32",
        output_a.dtype,
    )
    _require(output_a.dim() >= 1, ValueError, "output_a", "rank of at least 1", output_a.dim())
    shapes = {"lse_a": output_a.shape[:-1], "output_b": output_a.shape, "lse_b": lse_a.shape}
    dtypes = {"lse_a": torch.float32, "output_b": output_a.dtype, "lse_b": torch.float32}
    tensors = {"lse_a": lse_a, "output_b": output_b, "lse_b": lse_b}
    for name, tensor in tensors.items():
        device, dtype, shape = output_a.device, dtypes[name], shapes[name]
        _require(tensor.device == device, ValueError, name, f"device {device}", tensor.device)
        _require(tensor.dtype == dtype, TypeError, name, f"dtype {dtype}", tensor.dtype)
        _require(
            tensor.shape == shape, ValueError, name, f"shape {list(shape)}", list(tensor.shape)
        )


def _merge(
    output_a: torch.Tensor, lse_a: torch.Tensor, output_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    _check(output_a, lse_a, output_b, lse_b)
    largest = torch.maximum(lse_a, lse_b)
    base = torch.where(largest == float("-inf"), 0, largest)
    weight_a, weight_b = torch.exp(lse_a - base), torch.exp(lse_b - base)
    total = weight_a + weight_b
    # If neither has a token, both outputs and their weights are zeros.
    divisor = torch.where(total == 0, 1, total)
    merged = output_a.float() * (weight_a / divisor).unsqueeze(-1)
    merged = merged + output_b.float() * (weight_b / divisor).unsqueeze(-1)
    return merged.to(output_a.dtype), base + torch.log(total)


# XLA fuses these operations into one kernel, so a hand-written one would gain nothing.
_LIBRARY = torch.library.Library("xla_gpu", "FRAGMENT")
_LIBRARY.define(
    "merge_attention_states(Tensor output_a, Tensor lse_a, Tensor output_b, Tensor lse_b)"
    " -> (Tensor, Tensor)"
)
_LIBRARY.impl("merge_attention_states", _merge, "CompositeImplicitAutograd")


def merge_attention_states(
    output_a: torch.Tensor, lse_a: torch.Tensor, output_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge attention over two sets of tokens: ``torch.ops.xla_gpu.merge_attention_states``.

    It merges results of `paged_attention` and `ragged_paged_attention` with ``return_lse=True`` for
    the same queries and two disjoint sets of tokens. Up to rounding, the result is that of one call
    with all tokens. Use it for a prefix that sequences share (cascade attention), or for a context
    that is split across devices. The formula is that of FlashInfer's ``merge_state`` (Ye et al.,
    2025). Pass `sinks` to only one of the two calls.

    Args:
        output_a, output_b: [..., head_dim], float16, bfloat16 or float32, of the same shape and
            dtype.
        lse_a, lse_b: [...], float32: ``log(sum(exp(logits)))`` of each row; -inf for rows
            without tokens.

    Returns:
        The merged output and lse, with the shapes and dtypes of `output_a` and `lse_a`.

    Raises:
        TypeError: a tensor has an unsupported or mismatched dtype.
        ValueError: the tensors are on different devices, or a shape does not match.

    Example:
        >>> output = torch.randn(2, 3, 4, 64, dtype=torch.bfloat16, device="xla")
        >>> lse = torch.randn(3, 4, device="xla")
        >>> nothing = torch.full_like(lse, float("-inf"))
        >>> merged, merged_lse = merge_attention_states(output[0], lse, output[1], nothing)
        >>> torch.equal(merged.cpu(), output[0].cpu()), torch.equal(merged_lse.cpu(), lse.cpu())
        (True, True)
        >>> merged, _ = merge_attention_states(output[0], lse, output[1], lse)
        >>> torch.equal(merged.cpu(), (output.float().sum(0) / 2).bfloat16().cpu())
        True
    """
    return torch.ops.xla_gpu.merge_attention_states(output_a, lse_a, output_b, lse_b)
