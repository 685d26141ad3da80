"""Custom calls: what torch_xla_ext.custom_call and the operators make of their arguments.

``torch_xla_ext.custom_call`` is the function: import from this package by ``from``.
"""

from torch_xla_ext.custom_call.call import call_operator, custom_call, is_cacheable, prepare

__all__ = ["call_operator", "custom_call", "is_cacheable", "prepare"]
