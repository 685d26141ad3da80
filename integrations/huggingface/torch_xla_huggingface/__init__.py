"""Fix Hugging Face's libraries for programs on XLA devices.

upstream_fixes.py is the table of replaced functions of these libraries. `import torch_xla` reads
the table; the modules that apply its rows are imported with the libraries that they change.
"""
