"""The implementation of torch_xla_ext.capture."""
