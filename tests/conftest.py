"""Fixtures of all tests that run on the built wheel."""

from testing.fixtures import device, fresh_compiler, mesh, on_a_gpu, seed

__all__ = ["device", "fresh_compiler", "mesh", "on_a_gpu", "seed"]
