"""Define operators for TVM-FFI functions, whose result shapes follow from signatures."""

import os
import re
from collections.abc import Mapping

import torch

from xla_kernels.operator.define import define_operator
from xla_kernels.signature import parse
from xla_kernels.signature.schema import Schema
from xla_kernels.tvm_ffi import register_tvm_ffi_kernel

_TYPES = {
    **{"bool": "bool", "str": "str", "i32": "int", "i64": "int", "f32": "float", "f64": "float"},
    **{"i32[]": "int[]", "i64[]": "int[]", "f32[]": "float[]", "f64[]": "float[]"},
}
# The suffix of a platform's function in builds of kernel-builder.
ENDINGS = {"Host": "_cpu", "CUDA": "_cuda"}


def define(
    namespace: str,
    name: str,
    library: str | os.PathLike[str],
    options: Mapping[str, object],
    platform: str,
    identity: str | None = None,
) -> torch._ops.OpOverload:
    """Define ``torch.ops.<namespace>.<name>(operands, parameters)``, which returns the results.

    Args:
        options: options of `register_kernel`, the parameters' `defaults`, and of `define_operator`
            `sharding_rule` and `check`.
        identity: the prefix of the library's target names; by default the namespace.
    """
    options = dict(options)
    if "signature" not in options:
        raise TypeError(f"load_kernels: {name}: a function of TVM-FFI needs a signature")
    defaults = options.pop("defaults", {})
    of_operator = {key: options.pop(key, None) for key in ("sharding_rule", "check")}
    target = re.sub(r"\W", "_", f"{identity or namespace}_{name}")
    register_tvm_ffi_kernel(target, library, platform=platform, **{"symbol": name, **options})
    schema = parse.parse(target, options["signature"], options.get("parameters", ""))
    return define_operator(
        f"{namespace}::{name}({_arguments(schema, defaults)}) -> {_returns(schema)}",
        target=target,
        environment=(),
        replace=True,
        **of_operator,
    )


def _arguments(schema: Schema, defaults: Mapping[str, object]) -> str:
    words = [f"Tensor{'?' if each.optional else ''} {each.name}" for each in schema.operands]
    for parameter in schema.parameters:
        default = f"={defaults[parameter.name]!r}" if parameter.name in defaults else ""
        words.append(f"{_TYPES[parameter.type]} {parameter.name}{default}")
    return ", ".join(words)


def _returns(schema: Schema) -> str:
    count = len(schema.results)
    return "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
