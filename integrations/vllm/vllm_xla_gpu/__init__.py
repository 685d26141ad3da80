"""Run vLLM's XLA backend on GPUs and the CPU, with the kernels of torch_xla_ext.

vLLM finds this package through the entry points in plugin.py. docs/vllm.md describes set-up and
use.
"""
