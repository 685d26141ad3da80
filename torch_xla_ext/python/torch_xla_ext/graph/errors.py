"""Errors of torch_xla_ext.capture."""


class CaptureError(RuntimeError):
    """A function cannot be captured, or a replay failed; the message names the tensor."""


class ReadError(CaptureError):
    """A step reads a tensor's value on the host.

    Attributes:
        can_repeat: whether the step can be traced again, because it had changed nothing in Python.
    """

    can_repeat = False
