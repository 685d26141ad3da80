"""`cuda_kernel`, which makes CUDA kernels from source text, PTX or cubins, without nvcc."""
