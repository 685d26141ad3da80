"""Custom calls: what torch_xla_ext.custom_call and the operators make of their arguments.

The name is not custom_call, which is the function of the package.
"""

from torch_xla_ext.calls.call import call_operator, custom_call, may_be_remembered, prepare

__all__ = ["call_operator", "custom_call", "may_be_remembered", "prepare"]
