"""Limits of the operators (docs/paged_attention.md), and the error for anything beyond them."""

HEAD_DIMS = (64, 96, 128, 192, 256)  # smaller heads are padded to these
LATENT_DIM = 576  # of multi-head latent attention: 512, and 64 that are rotated
PAGE_SIZES = (8, 16, 32, 64, 128)
CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3")


class UnsupportedError(ValueError):
    """vllm-xla-gpu does not support a request or setting; the text names a remedy."""


def padded_head_dim(head_dim: int) -> int:
    """Return the smallest head dimension of the operators that has room for `head_dim`."""
    if head_dim == LATENT_DIM:
        return head_dim
    return next(size for size in HEAD_DIMS if size >= head_dim)
