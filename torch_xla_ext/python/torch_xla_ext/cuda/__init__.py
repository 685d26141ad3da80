"""The CUDA runtime: finds a PJRT CUDA plugin and its dependencies, for ``PJRT_DEVICE=CUDA``.

``discovery`` examines the machine before a client is created, ``options`` translates environment
variables into client options. torch_xla_ext_plugin, which torch_xla loads at import, calls them.
"""
