"""Kernels that exist already, as parts of XLA programs: docs/existing_kernels.md."""
