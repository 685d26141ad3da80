"""The error of torch_xla_ext.capture."""


class CaptureError(RuntimeError):
    """A function that cannot be captured, or a replay that failed; the text names the tensor."""
