"""Implement the commands of ``python -m torch_xla_ext``, and profiling."""
