"""Find a PJRT CUDA plugin, and the CUDA libraries that it needs.

``discovery`` examines the machine before a client is created, ``options`` translates environment
variables into client options, and ``driver`` asks the driver for the GPU's compute capability.
"""
