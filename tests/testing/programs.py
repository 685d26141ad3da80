"""Collects XLA's optimized programs; must be imported before the first computation."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

_FOLDER = tempfile.TemporaryDirectory()
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), f"--xla_dump_to={_FOLDER.name}", "--xla_dump_hlo_as_text"]
)

_COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


class Programs(list):
    """The HLO texts of programs compiled in a `with` block. They are there when the block ends."""

    def with_target(self, target: str) -> str:
        """Returns the only program that calls this kernel."""
        (text,) = [text for text in self if f'custom_call_target="{target}' in text]
        return text


@contextlib.contextmanager
def compiled(stage: str = "after_optimizations") -> Iterator[Programs]:
    """Collects the programs that are compiled in the block."""
    before = set(_files(stage))
    programs = Programs()
    yield programs
    programs += [file.read_text() for file in _files(stage) if file not in before]


def collectives(program: str) -> list[str]:
    """The collectives with their shapes, such as `all-reduce f32[2,4]{1,0}`."""
    return [f"{kind} {shape}" for shape, kind in _COLLECTIVE.findall(program)]


def copies(program: str, shape: str) -> list[str]:
    """The operations that copy an array of this shape, such as `bf16[4,8]`."""
    return re.findall(rf".*= {re.escape(shape)}\S* copy(?:-start)?\(.*", program)


def shapes(program: str) -> set[tuple[int, ...]]:
    """The shapes of all arrays of a program."""
    found = re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", program)
    return {tuple(map(int, text.split(","))) for text in found}


def _files(stage: str) -> list[Path]:
    return sorted(Path(_FOLDER.name).glob(f"*{stage}.txt"))
