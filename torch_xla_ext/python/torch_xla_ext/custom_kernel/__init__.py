"""Run torch_xla's and vLLM's TPU operators on other devices (docs/tpu_code.md)."""
