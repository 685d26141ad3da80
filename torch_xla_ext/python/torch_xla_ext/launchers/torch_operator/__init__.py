"""Run PyTorch operators as custom calls."""
