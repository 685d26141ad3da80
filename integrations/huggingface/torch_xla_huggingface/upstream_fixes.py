"""The functions of Hugging Face's libraries that are replaced, for models on XLA devices.

torch_xla_ext_startup.plugin changes each module when it has been imported. It reads three names
here: `BY_MODULE`, and, for transformers' many modules of models, `is_model` and `fix_model`.

This module is a part of `import torch_xla`: it imports nothing but the standard library.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable
from types import ModuleType

_PACKAGE = __name__.rpartition(".")[0]


@dataclasses.dataclass(frozen=True)
class Fix:
    """What is replaced in one module.

    Attributes:
        module: the module, or a regular expression of modules' names.
        library: the distribution that has it.
        versions: those of the library that it was written for; others are changed, too, where
            they have what is replaced.
        reason: what happens without it.
        function: applies it to the imported module: `module.function` of this package.
        test: a file of tests/integrations/huggingface.
    """

    module: str
    library: str
    versions: str
    reason: str
    function: str
    test: str

    def apply(self, module: ModuleType) -> None:
        file, _, name = self.function.partition(".")
        getattr(importlib.import_module(f"{_PACKAGE}.{file}"), name)(module)


_SHARED_TENSORS = "the libraries compare addresses of storages, which XLA tensors do not have"

FIXES = (
    Fix(
        module="transformers.generation.utils",
        library="transformers",
        versions="4.55 to 4.57",
        reason="GenerationMixin.generate compiles a program for each length of the text",
        function="transformers_hooks.replace_generate",
        test="generate_test.py",
    ),
    Fix(
        module="transformers.integrations.sdpa_attention",
        library="transformers",
        versions="4.55 to 4.57",
        reason="use_gqa_in_sdpa says no, so keys and values are repeated for each head",
        function="transformers_hooks.replace_use_gqa",
        test="masks_test.py",
    ),
    Fix(
        module="safetensors.torch",
        library="safetensors",
        versions="0.8",
        reason=_SHARED_TENSORS,
        function="shared_tensors.replace_by_name",
        test="save_test.py",
    ),
    Fix(
        module="huggingface_hub.serialization._torch",
        library="huggingface_hub",
        versions="0.34 to 0.36",
        reason=_SHARED_TENSORS,
        function="shared_tensors.replace_by_name",
        test="save_test.py",
    ),
    Fix(
        module="accelerate.utils.modeling",
        library="accelerate",
        versions="1.10",
        reason=_SHARED_TENSORS,
        function="shared_tensors.replace_identity",
        test="save_test.py",
    ),
    Fix(
        module="accelerate.data_loader",
        library="accelerate",
        versions="1.10",
        reason="the loader reads ahead, so the optimizer steps before gradients are accumulated",
        function="accelerate_loader.replace",
        test="trainer_test.py",
    ),
)

# Of each model: the functions of the blocks in it that loop over experts.
MODELS = Fix(
    module=r"transformers\.models\.\w+\.modeling_\w+",
    library="transformers",
    versions="4.55 to 4.57",
    reason="a mixture of experts waits for the device in each layer, and compiles in each step",
    function="moe.replace",
    test="moe_test.py",
)

BY_MODULE: dict[str, Callable[[ModuleType], None]] = {fix.module: fix.apply for fix in FIXES}
_MODELS = re.compile(MODELS.module)


def is_model(name: str) -> bool:
    """Whether a module is one of transformers' modules of models."""
    return _MODELS.fullmatch(name) is not None


fix_model = MODELS.apply
