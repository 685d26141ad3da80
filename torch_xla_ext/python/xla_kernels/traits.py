"""Properties of a target's calls that XLA needs besides their arguments."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Traits:
    """The traits of a target; by default, those of a registered kernel.

    Attributes:
        built_in: XLA:GPU runs the target itself: on CUDA no kernel of its name is registered, and
            its payload is XLA's GpuBackendConfig in JSON.
        operand_layouts: {operand: dimensions}: the order in memory of an operand's dimensions, the
            one that changes slowest first. Other operands are row-major. A signature's layouts
            need not be repeated here.
        result_layouts: the same of results.
        num_hidden_results: how many of the last results get no tensor: workspaces whose size XLA
            sets when it compiles the program.
        runs_first_alone: programs with the target get the device for themselves when they first
            run: XLA then loads something that other work would disturb. torch-tpu ignores it.
    """

    built_in: bool = False
    operand_layouts: Mapping[int, Sequence[int]] = dataclasses.field(default_factory=dict)
    result_layouts: Mapping[int, Sequence[int]] = dataclasses.field(default_factory=dict)
    num_hidden_results: int = 0
    runs_first_alone: bool = False


NONE = Traits()
