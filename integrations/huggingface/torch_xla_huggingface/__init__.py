"""Fixes for programs with Hugging Face's libraries on XLA devices.

upstream_fixes.py is the table of what changes in these libraries. `import torch_xla` reads the
table; the modules that apply its rows are imported with the libraries that they change.
"""
