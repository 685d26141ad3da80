"""Fixtures of all tests that run on the built wheel."""

from testing.fixtures import device, seed

__all__ = ["device", "seed"]
