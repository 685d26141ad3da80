"""The error of torch_xla_ext.capture."""


class CaptureError(RuntimeError):
    """A function that can not be captured, or a replay that failed; the text names the tensor."""
