"""The CUDA runtime: finds a PJRT CUDA plugin and what it needs, for ``PJRT_DEVICE=CUDA``.

``discovery`` looks at the machine once a client is made, ``options`` translates environment
variables into client options. torch_xla_ext_plugin, which torch_xla loads at import, calls them.
"""
