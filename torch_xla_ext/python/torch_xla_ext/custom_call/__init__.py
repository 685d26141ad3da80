"""Turn the arguments of torch_xla_ext.custom_call and of operators into a traced call.

The attribute ``torch_xla_ext.custom_call`` is the function, not this package. Import this package's
modules with ``from torch_xla_ext.custom_call import …``.
"""

from torch_xla_ext.custom_call.arguments import Request, array_of, tensors_of
from torch_xla_ext.custom_call.call import (
    Local,
    call_operator,
    custom_call,
    is_cacheable,
    local_call,
    parts,
    prepare,
    prepare_operator,
)

__all__ = [
    "Local",
    "Request",
    "array_of",
    "call_operator",
    "custom_call",
    "is_cacheable",
    "local_call",
    "parts",
    "prepare",
    "prepare_operator",
    "tensors_of",
]
