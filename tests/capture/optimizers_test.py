"""A learning rate on the device, for each optimizer of torch.optim, and stored optimizers."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch_xla
from torch import Tensor, nn

from torch_xla_ext import CaptureError, capture
