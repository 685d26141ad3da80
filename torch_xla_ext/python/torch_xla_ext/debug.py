"""Show the programs that XLA is about to run: HLO, StableHLO, and their custom calls.

If the environment variable TORCH_XLA_EXT_LOG_LAUNCHES is set, launches of kernels that use
torch_xla_ext/kernel.h are logged to standard error, with their shapes and the time of the launch
function. On CUDA that is the time to enqueue the kernel, not to run it.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch_xla

from torch_xla_ext.custom_call.reference import use_reference
from torch_xla_ext.registry import registration
from torch_xla_ext.registry.platforms import APIS, CALL_VERSIONS
from torch_xla_ext.tools.index_checks import check_indices
from xla_kernels.references import register_reference
from xla_kernels.signature import untyped_payload
from xla_kernels.signature.untyped_payload import UntypedPayload

__all__ = [
    "CustomCall",
    "CustomCalls",
    "Text",
    "check_indices",
    "custom_calls",
    "hlo",
    "register_reference",
    "stablehlo",
    "use_reference",
]


class Text(str):
    """A str that terminals and notebooks show without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"


def _tensors(tensors: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def hlo(tensors: torch.Tensor | Sequence[torch.Tensor]) -> Text:
    """Return the HLO of the pending graph of XLA tensors, before XLA optimizes it."""
    return Text(torch_xla._XLAC._get_xla_tensors_hlo(_tensors(tensors)))


def stablehlo(tensors: torch.Tensor | Sequence[torch.Tensor]) -> Text:
    """Return the pending graph of XLA tensors as StableHLO."""
    text = torch_xla._XLAC._get_stablehlo(_tensors(tensors), "", [], False)
    return Text(text.decode())


@dataclass(frozen=True)
class CustomCall:
    """A custom call in the HLO. Shapes are XLA's text, with layouts: `f32[2,3]{1,0}`."""

    name: str
    target: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    api_version: int
    # Decoded if the kernel is made with kernel.h; otherwise the bytes, or the attributes' text.
    payload: UntypedPayload | bytes | str
    aliases: dict[int, int]
    has_side_effect: bool

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.target} (API version {self.api_version})",
            f"  operands  {', '.join(self.operands)}",
            f"  results   {', '.join(self.results)}",
        ]
        if isinstance(self.payload, UntypedPayload):
            values = ", ".join(f"{k}={v}" for k, v in self.payload.parameters.items())
            lines.append(f"  params    {values or 'none'}")
        else:
            lines.append(f"  payload   {self.payload!r}")
        if self.aliases:
            pairs = ", ".join(f"result {r} is operand {o}" for r, o in self.aliases.items())
            lines.append(f"  aliases   {pairs}")
        if self.has_side_effect:
            lines.append("  has a side effect")
        return "\n".join(lines)


class CustomCalls(tuple):
    """A graph's custom calls, with a readable text for terminals and notebooks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(str(call) for call in self) or "no custom calls"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


_CALL = re.compile(r"%([\w.-]+) = (\(.*?\)|\S+) custom-call\((.*?)\), (custom_call_target=.*)")
_SHAPE = re.compile(r"\w+\[[^\]]*\](?:\{[^}]*\})?")
_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_ALIAS = re.compile(r"\{(\d*)\}: \((\d+), \{\}")
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "'": b"'", '"': b'"', "\\": b"\\"}


def _unquoted(text: str) -> bytes:
    """Return the bytes of a string in HLO text, which has C escapes and octal bytes."""
    parts = re.split(r"\\([0-7]{3}|.)", text)
    return b"".join(
        part.encode("utf-8", "surrogateescape")
        if index % 2 == 0
        else bytes([int(part, 8)])
        if part.isdigit()
        else _ESCAPES.get(part, part.encode())
        for index, part in enumerate(parts)
    )


def _payload(target: str, api_version: int, config: bytes) -> UntypedPayload | bytes | str:
    if api_version == APIS["ffi"].call_version:
        return config.decode(errors="replace")
    schema = registration.schema(target)
    if schema is None or config[:1] != bytes([untyped_payload.MAGIC]):
        return config
    try:
        return untyped_payload.unpack(schema, config)
    except ValueError:
        return config


def _parse(text: str) -> Iterator[CustomCall]:
    for name, results, operands, rest in _CALL.findall(text):
        target = _unquoted(re.match("custom_call_target=" + _QUOTED, rest)[1]).decode()
        target = target.removesuffix("#one-result")  # csrc/registry/one_result.h
        # HLO prints attributes in braces without quotes, anything else quoted.
        quoted = re.search("backend_config=" + _QUOTED, rest)
        braced = re.search(r"backend_config=(\{.*\})", rest)
        config = _unquoted(quoted[1]) if quoted else braced[1].encode() if braced else b""
        version = re.search(r"api_version=(\w+)", rest)
        api_version = CALL_VERSIONS.get(version[1], 0) if version else 1
        aliasing = re.search(r"output_to_operand_aliasing=\{(.*?\))\}", rest)
        yield CustomCall(
            name=name,
            target=target,
            operands=tuple(_SHAPE.findall(operands)),
            results=tuple(_SHAPE.findall(results)),
            api_version=api_version,
            payload=_payload(target, api_version, config),
            aliases={
                int(r or 0): int(o) for r, o in _ALIAS.findall(aliasing[1] if aliasing else "")
            },
            has_side_effect="custom_call_has_side_effect=true" in rest,
        )


def custom_calls(tensors: torch.Tensor | Sequence[torch.Tensor]) -> CustomCalls:
    """Return the custom calls in the pending graph of XLA tensors, in the HLO's order."""
    return CustomCalls(_parse(hlo(tensors)))
