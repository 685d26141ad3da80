"""Find custom calls in an XLA profile, from the copies of the programs that it contains.

jax.profiler.ProfileData, which reads the events, does not return the programs. So this module reads
the few fields that lead to them: those of XSpace and XPlane in tsl's xplane.proto, and of HloProto
in xla's hlo.proto.
"""

from collections.abc import Iterator

from torch_xla_ext.protobuf_wire_format import fields

_METADATA = b"/host:metadata"


def custom_call_targets(profile: bytes) -> dict[tuple[str, str], str]:
    """Return the target of each custom call, by program and instruction.

    Args:
        profile: the contents of a file that XLA's profiler wrote, an XSpace.

    Returns:
        Targets by ("module(program id)", instruction), because modules of two programs may share a
        name.
    """
    targets: dict[tuple[str, str], str] = {}
    for plane in _messages(memoryview(profile), 1):
        if bytes(_first(plane, 2)) != _METADATA:
            continue
        for entry in _messages(plane, 4):  # event_metadata: one for each program
            for metadata in _messages(entry, 2):
                program = _text(metadata, 2)
                for stat in _messages(metadata, 5):
                    for hlo in _messages(stat, 6):
                        for instruction in _instructions(hlo):
                            if _text(instruction, 2) == "custom-call":
                                targets[program, _text(instruction, 1)] = _text(instruction, 28)
    return targets


def _instructions(hlo: memoryview) -> Iterator[memoryview]:
    for module in _messages(hlo, 1):
        for computation in _messages(module, 3):
            yield from _messages(computation, 2)


def _messages(data: memoryview, field: int) -> Iterator[memoryview]:
    """Return the values of a field whose type is bytes, string or message."""
    return (value for number, value in fields(data) if number == field)


def _first(data: memoryview, field: int) -> memoryview:
    return next(_messages(data, field), memoryview(b""))


def _text(data: memoryview, field: int) -> str:
    return bytes(_first(data, field)).decode(errors="replace")
