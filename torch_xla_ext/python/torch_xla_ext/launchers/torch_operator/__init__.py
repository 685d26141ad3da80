"""PyTorch operators as custom calls."""
