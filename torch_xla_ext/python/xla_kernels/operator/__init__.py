"""PyTorch operators that call kernels: their declaration, checks and derivatives."""
