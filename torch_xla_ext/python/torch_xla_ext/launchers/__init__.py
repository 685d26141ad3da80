"""Run existing kernels inside XLA programs (docs/launchers.md)."""
