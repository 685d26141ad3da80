"""CUDA kernels from source text, PTX or cubins, without nvcc: `cuda_kernel`."""
