"""Code that `import torch_xla` runs: fixes of torch_xla and PyTorch, and CUDA's plug-in.

torch_xla/version.py imports lazy_dynamo, and torch_xla loads the entry point `cuda`, which is in
plugin. This is a separate package because importing torch_xla_ext takes half a second: modules here
import torch_xla_ext only in functions that need it.
"""
