"""vLLM's XLA backend on torch_xla's GPUs and CPU, with the kernels of torch_xla_ext.

vLLM finds it by the entry points in plugin.py. docs/vllm.md describes set-up and use.
"""
