"""Code that `import torch_xla` runs: fixes for torch_xla and PyTorch, and the CUDA plugin.

torch_xla/version.py imports lazy_dynamo.py, and torch_xla loads the entry point `cuda` from
plugin.py. Importing torch_xla_ext takes half a second, so this is a separate package, whose modules
import torch_xla_ext only in functions that need it.
"""
