"""Run Triton kernels as custom calls."""
