"""Register custom-call targets, by platform, from the libraries with their functions."""
