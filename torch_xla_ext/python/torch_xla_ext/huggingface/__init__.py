"""What programs with Hugging Face's libraries need on XLA; loaded when transformers is imported."""
