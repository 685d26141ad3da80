"""Attention by targets that XLA itself provides."""
