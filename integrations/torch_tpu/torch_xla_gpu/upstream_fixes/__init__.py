"""Fixes for functions of torch-tpu that work on TPUs only. Each module is one subject."""
