"""The former import paths of modules that have moved. They work for one release, with a warning."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

from torch_xla_ext_startup import module_alias

_PACKAGE = "torch_xla_ext"
PATHS = {
    f"{_PACKAGE}.{former}": path
    for former, path in {
        "activation_checkpoint": "torch_xla_ext_startup.activation_checkpoint",
        "attributes": "torch_xla_ext.kernel_schema.ffi_attributes",
        "cuda.processes": "torch_xla_ext.cuda.rendezvous",
        "cudnn_attention": "torch_xla_ext.tpu_operators.cudnn_attention",
        "descriptor": "torch_xla_ext.kernel_schema.untyped_payload",
        "doctor": "torch_xla_ext.tools.doctor",
        "dtypes": "torch_xla_ext.kernel_schema.dtypes",
        "elf": "torch_xla_ext.targets.elf",
        "flash_attention": "torch_xla_ext.tpu_operators.flash_attention",
        "libraries": "torch_xla_ext.targets.libraries",
        "new_kernel": "torch_xla_ext.tools.new_kernel",
        "openxla": "torch_xla_ext_startup.dynamo_bridge",
        "parameters": "torch_xla_ext_startup.module_parameters",
        "products": "torch_xla_ext.tpu_operators.grouped_matmul",
        "profiled_programs": "torch_xla_ext.tools.profiled_programs",
        "profiling": "torch_xla_ext.tools.profiling",
        "reference": "torch_xla_ext.calls.reference",
        "registration": "torch_xla_ext.targets.registration",
        "schema": "torch_xla_ext.kernel_schema.schema",
        "signature_check": "torch_xla_ext.kernel_schema.signature_check",
        "transforms": "torch_xla_ext.calls.transforms",
        "upstream": "torch_xla_ext.tpu_operators.install",
        "wire_format": "torch_xla_ext.tools.wire_format",
    }.items()
}


def attribute(name: str) -> ModuleType:
    """The module for ``torch_xla_ext.<name>``, which the package's __getattr__ is asked for.

    Raises:
        AttributeError: no module had this name.
    """
    former = f"{_PACKAGE}.{name}"
    if former not in PATHS:
        raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")
    _warn(former, stacklevel=4)
    return importlib.import_module(PATHS[former])


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in PATHS:
            return None
        _warn(name, stacklevel=3)
        return module_alias.spec(name, PATHS[name])


def _warn(former: str, stacklevel: int) -> None:
    warnings.warn(
        f"{former} is now {PATHS[former]}; the former path will be removed in the next release",
        DeprecationWarning,
        stacklevel=stacklevel,
    )


def install() -> None:
    """Makes the former paths importable."""
    sys.meta_path.append(_Finder())
