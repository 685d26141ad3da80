"""What torch_xla_ext.capture is made of."""
