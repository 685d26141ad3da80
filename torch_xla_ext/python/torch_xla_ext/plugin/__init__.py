"""The processes of a program with ``PJRT_DEVICE=CUDA``; xla_kernels.plugin finds the plugin."""
