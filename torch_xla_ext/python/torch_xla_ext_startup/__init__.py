"""Code that `import torch_xla` runs: fixes of torch_xla and PyTorch, and CUDA's plug-in.

torch_xla/version.py imports lazy_dynamo, and torch_xla loads the entry point `cuda`, which is in
plugin. This is a package of its own because importing torch_xla_ext takes half a second, which
`import torch_xla` should not: no module here imports torch_xla_ext when it is imported itself.
"""
