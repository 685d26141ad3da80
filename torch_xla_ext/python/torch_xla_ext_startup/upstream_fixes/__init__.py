"""Replaced functions of torch_xla, PyTorch and other libraries."""
