"""The CUDA runtime: finds a PJRT CUDA plugin and what it needs, for ``PJRT_DEVICE=CUDA``.

``plugin`` is the entry point that torch_xla loads at its import, ``discovery`` looks at the
machine once a client is made, ``options`` translates environment variables into client options.
"""
