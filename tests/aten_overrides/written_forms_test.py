"""Operators in place and with `out=` below functionalization, where PyTorch's functions call them.

Without functionalization, Python calls the same kernels.
"""

import torch
import torch.nn.functional as F  # noqa: N812
import torch_xla  # noqa: F401
from testing.scripts import run_script

SCRIPT = """
import torch, torch_xla

def refuses(call, text):
    try:
        call()
    except RuntimeError as error:
        assert str(error).startswith(text), error
    else:
        raise AssertionError(text)

x = torch.arange(4, device="xla")
assert torch_xla._XLAC._xla_capture_is_supported(x) is False  # not functionalized
cast = "result type Float can't be cast to the desired output type Long"
refuses(lambda: x.mul_(0.5), cast)
refuses(lambda: x.sub_(torch.ones(4, device="xla")), cast)
refuses(lambda: x.div_(2), cast)
refuses(lambda: x.add_(torch.ones(2, 4, dtype=torch.int64, device="xla")), "output with shape [4]")
refuses(lambda: torch.mul(x, 0.5, out=torch.empty(4, dtype=torch.int64, device="xla")), cast)
refuses(lambda: torch.mul(x, torch.ones(3, device="xla"), out=x.float()), "The size of tensor a")
assert x.tolist() == [0, 1, 2, 3]
assert x.mul_(2).add_(1).tolist() == [1, 3, 5, 7]
assert torch.add(x, 1, out=torch.empty(4, device="xla")).tolist() == [2, 4, 6, 8]
assert torch.add(x, 1, out=torch.empty(0, dtype=int, device="xla")).tolist() == [2, 4, 6, 8]
y = torch.zeros(4, device="xla")
y[1:3].add_(1).mul_(3)
assert y.tolist() == [0, 3, 3, 0]
# A number that upstream's kernel gets wrong.
assert torch.tensor([-1.0], device="xla").remainder_(float("inf")).tolist() == [float("inf")]
"""


def test_without_functionalization() -> None:
    result = run_script(SCRIPT, XLA_DISABLE_FUNCTIONALIZATION="1")
    assert result.returncode == 0, result.stderr


def test_a_loss_that_multiplies_in_place() -> None:
    """PyTorch's function multiplies the negated target by the input."""
    x, y = torch.tensor([0.5, -1.0]), torch.tensor([1.0, -1.0])
    found = F.soft_margin_loss(x.to("xla"), y.to("xla").double())
    torch.testing.assert_close(found.cpu(), F.soft_margin_loss(x, y.double()))
