"""Fixtures of these tests."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    """torch.compile gives up on a function that it has compiled for many kinds of arguments."""
    torch._dynamo.reset()
    yield
