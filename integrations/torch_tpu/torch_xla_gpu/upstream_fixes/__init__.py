"""Fix functions of torch-tpu that work only on TPUs, one subject in each module."""
