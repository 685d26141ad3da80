"""Triton kernels as custom calls."""
