"""How long CPU devices wait for each other in a collective."""

import tempfile

from testing.scripts import start_script

ALONE = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla_ext_startup import upstream_fixes

upstream_fixes.revert("collectives")  # which refuses this program

def work(_):
    total = xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device=torch_xla.device()))
    if xr.global_ordinal() == 0:
        total.tolist()

torch_xla.launch(work, start_method="fork")
"""


def test_the_time_is_set() -> None:
    """XLA's own limit is ten seconds, which a busy machine may exceed."""
    with tempfile.TemporaryFile("w+") as output:
        script = start_script(
            ALONE,
            output,
            output,
            CPU_NUM_DEVICES="2",
            PJRT_DEVICE="CPU",
            TORCH_XLA_EXT_COLLECTIVE_TIMEOUT="2",
        )
        assert script.wait(60) != 0
        output.seek(0)
        assert "of 1 seconds exceeded" in output.read()
