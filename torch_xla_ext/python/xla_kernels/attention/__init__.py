"""Attention by targets of XLA's own."""
