"""Fixtures of all tests that run on the built wheel."""

from testing.fixtures import device, mesh, seed

__all__ = ["device", "mesh", "seed"]
