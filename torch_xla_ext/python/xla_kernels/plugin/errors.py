"""Errors and warnings about a machine's CUDA installation."""


class CudaRuntimeError(RuntimeError):
    """CUDA cannot be used; the message says what was expected and found, and the remedy."""


class CudaRuntimeWarning(UserWarning):
    """CUDA may not work as it should."""
