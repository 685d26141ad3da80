"""Fixtures for the kernel tests, which run against the built wheel."""

from testing.fixtures import device, seed

__all__ = ["device", "seed"]
