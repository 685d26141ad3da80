"""Run PyTorch's attention functions on XLA tensors with cuDNN or kernels of the wheel."""
