"""Custom-call targets: platforms, registration, and the libraries that functions come from."""
