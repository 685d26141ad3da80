"""Properties of a target's calls that XLA needs in addition to their arguments."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Traits:
    """The traits of a target; by default, those of a registered kernel.

    Attributes:
        built_in: XLA:GPU implements the target: on CUDA no kernel with its name is registered, and
            its payload is XLA's GpuBackendConfig in JSON.
        operand_layouts: {operand: dimensions}: an operand's dimensions in memory order, the
            slowest-changing first. Other operands are row-major. A signature's layouts need not be
            repeated here.
        result_layouts: the same for results.
        num_hidden_results: how many of the last results are not returned: workspaces whose size XLA
            sets when it compiles the program.
        runs_first_alone: the first run of a program with the target has the device to itself,
            because XLA then loads something that other work would disturb. torch-tpu ignores this.
    """

    built_in: bool = False
    operand_layouts: Mapping[int, Sequence[int]] = dataclasses.field(default_factory=dict)
    result_layouts: Mapping[int, Sequence[int]] = dataclasses.field(default_factory=dict)
    num_hidden_results: int = 0
    runs_first_alone: bool = False


NONE = Traits()
