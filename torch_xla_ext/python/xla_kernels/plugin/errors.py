"""Errors and warnings about a machine's CUDA installation."""


class CudaRuntimeError(RuntimeError):
    """CUDA cannot be used. The text says what was expected, what was found, and the remedy."""


class CudaRuntimeWarning(UserWarning):
    """CUDA may not work as it should."""
