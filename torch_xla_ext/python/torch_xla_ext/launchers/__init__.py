"""Existing kernels as parts of XLA programs: docs/launchers.md."""
