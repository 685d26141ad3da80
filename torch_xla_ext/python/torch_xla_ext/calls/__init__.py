"""Custom calls: what torch_xla_ext.custom_call and the operators make of their arguments.

The name is not custom_call, which is the function of the package.
"""

from torch_xla_ext.calls.call import call_operator, custom_call, is_plain, prepare

__all__ = ["call_operator", "custom_call", "is_plain", "prepare"]
