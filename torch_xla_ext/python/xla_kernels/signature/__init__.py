"""Parse a kernel's signature, check calls against it, and encode parameters."""
