"""Attention by cuDNN and by kernels of the wheel, behind PyTorch's functions."""
