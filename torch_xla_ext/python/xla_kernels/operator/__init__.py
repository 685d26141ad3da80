"""Define PyTorch operators that call kernels, with their checks and derivatives."""
