"""Attention with custom-call targets that XLA provides."""
