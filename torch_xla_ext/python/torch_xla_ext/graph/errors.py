"""The error of torch_xla_ext.capture."""


class CaptureError(RuntimeError):
    """A function that cannot be captured, or a replay that failed; the text names the tensor."""


class ReadError(CaptureError):
    """A step reads the value of a tensor on the host.

    Attributes:
        can_repeat: whether the step had changed nothing in Python before, and can be traced again.
    """

    can_repeat = False
