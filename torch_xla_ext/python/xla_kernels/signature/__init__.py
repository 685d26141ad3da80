"""A kernel's signature, the checks of a call against it, and the encoding of its parameters."""
