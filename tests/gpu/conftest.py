"""The tests here need a GPU: PJRT_DEVICE=CUDA and GPU_KERNELS=…/libgpu_kernels.so."""

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("PJRT_DEVICE") == "CUDA" and os.environ.get("GPU_KERNELS"):
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="PJRT_DEVICE=CUDA and GPU_KERNELS are not set"))
