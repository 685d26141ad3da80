"""The operators of the wheel, one module each. Importing them registers ``torch.ops.xla_gpu``."""

from torch_xla_ext.ops.kv_cache_update import kv_cache_update, kv_pages_update
from torch_xla_ext.ops.paged_attention import paged_attention
from torch_xla_ext.ops.ragged_paged_attention import ragged_paged_attention
from torch_xla_ext.ops.simple_add import simple_add

__all__ = [
    "kv_cache_update",
    "kv_pages_update",
    "paged_attention",
    "ragged_paged_attention",
    "simple_add",
]
