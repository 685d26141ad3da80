"""The CUDA runtime: finds a PJRT CUDA plugin and its dependencies, for ``PJRT_DEVICE=CUDA``.

``discovery`` examines the machine before a client is created, ``options`` translates environment
variables into client options, and ``rendezvous`` waits for the other processes of a program.
torch_xla_ext_startup.plugin, which torch_xla loads at import, calls them.
"""
