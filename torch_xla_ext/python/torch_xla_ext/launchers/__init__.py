"""Existing kernels as parts of XLA programs: docs/existing_kernels.md."""
