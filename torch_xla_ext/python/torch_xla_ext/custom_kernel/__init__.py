"""torch_xla's and vLLM's operators for TPUs, on other devices: docs/tpu_code.md."""
