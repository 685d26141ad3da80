"""Let accelerate prepare models that it compiles.

For XLA, accelerate moves a model and looks its new parameters up by their old names. If it has also
compiled the model, as the Trainer asks it with torch_compile=True, each name has a prefix.
"""

import functools
from collections.abc import Callable

_PREFIX = "_orig_mod."  # of torch.compile's modules


def parameters_by_name(original: Callable[..., dict[str, object]]) -> Callable[..., object]:
    """Replace Accelerator._get_named_parameters: names are those of the model itself."""

    @functools.wraps(original)
    def parameters_by_name(self: object, *objects: object, **options: object) -> dict[str, object]:
        named = original(self, *objects, **options)
        return {name.replace(_PREFIX, ""): parameter for name, parameter in named.items()}

    return parameters_by_name
