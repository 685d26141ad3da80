"""Fixes for what torch-tpu does for TPUs only. Each module is one subject."""
