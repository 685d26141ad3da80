"""What torch-tpu does for a TPU only, done for XLA's other devices. Each module is one subject."""
