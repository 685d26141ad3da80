"""The list of known faults, known_faults.toml: read, compared with what a sweep found, written."""

import dataclasses
import itertools
import json
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

FILE = Path(__file__).with_name("known_faults.toml")
KINDS = ("wrong", "error", "crash", "hang")
_WHAT = {"wrong": "wrong result", "error": "error", "crash": "process ends", "hang": "hang"}
_BEGIN = (
    "<!-- Made by `python -m aten_overrides.known` from tests/aten_overrides/known_faults.toml. -->"
)
_END = "<!-- End of what is made. -->"
UNEXAMINED = "Not examined: "

HEADER = """\
# Operators that differ from PyTorch's on XLA:CPU, as `-m aten_overrides.sweep --all` finds them.
#
# what      wrong: another number, dtype or shape; error: XLA raises and the CPU does not;
#           crash: the process ends; hang: it does not end
# reason    why, in one sentence
# varies    if true, they are right on some machines, by the instructions of the CPU
# where     by operator, its name in PyTorch's OpInfo database, with the variant's (in `sums`,
#           sums.py's): mode, dtypes, and the numbers of the samples that fail
#
# sweep_test.py fails where a sample of this list is right, and where one that is not listed fails.
# After a fix, `python -m aten_overrides.sweep --operator NAME --write-known` updates the entries
# and keeps their reasons, and `python -m aten_overrides.known` the table in docs/debugging.md.
"""


@dataclasses.dataclass(frozen=True, order=True)
class Place:
    """One operator in one mode with one dtype: the unit of the sweep."""

    operator: str
    mode: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.operator}, {self.mode}, {self.dtype}"


@dataclasses.dataclass(frozen=True)
class Fault:
    what: str
    reason: str
    varies: bool = False


# The faults of a place, by sample.
Faults = dict[Place, dict[int, Fault]]


def read(path: Path = FILE) -> Faults:
    faults: Faults = defaultdict(dict)
    for entry in tomllib.loads(path.read_text()).get("fault", []):
        fault = Fault(entry["what"], entry["reason"], entry.get("varies", False))
        if fault.what not in KINDS:
            raise ValueError(f"{fault.reason}: what must be one of {KINDS}: {fault.what}")
        for operator, lines in entry["where"].items():
            for line in lines:
                place, _, samples = line.partition(": ")
                mode, _, dtypes = place.rpartition(" ")
                for dtype, sample in itertools.product(dtypes.split("/"), _samples(samples)):
                    known = faults[Place(operator, mode, dtype)]
                    if sample in known:
                        raise ValueError(f"{operator}: listed twice: {place}: {sample}")
                    known[sample] = fault
    return dict(faults)


def write(faults: Faults, path: Path = FILE) -> None:
    entries: dict[Fault, dict[str, dict[Place, list[int]]]] = defaultdict(dict)
    for place, samples in sorted(faults.items()):
        for sample, fault in sorted(samples.items()):
            places = entries[fault].setdefault(place.operator, {})
            places.setdefault(place, []).append(sample)
    text = [HEADER]
    for fault, operators in entries.items():
        lines = ["[[fault]]", f"what = {_quoted(fault.what)}", f"reason = {_quoted(fault.reason)}"]
        lines += ["varies = true"] * fault.varies + ["[fault.where]"]
        lines += [f"{_quoted(name)} = {_where(places)}" for name, places in operators.items()]
        text.append("\n".join(lines) + "\n")
    path.write_text("\n".join(text))


def _where(places: dict[Place, list[int]]) -> str:
    dtypes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for place, numbers in places.items():
        dtypes[place.mode, _ranges(numbers)].append(place.dtype)
    lines = [_quoted(f"{mode} {'/'.join(d)}: {ranges}") for (mode, ranges), d in dtypes.items()]
    if len(lines) == 1:
        return f"[{lines[0]}]"
    return "[\n" + "".join(f"  {line},\n" for line in lines) + "]"


def with_table(page: str, faults: Faults) -> str:
    """Returns docs/debugging.md with its table: one row for each reason."""
    rows: dict[Fault, set[str]] = defaultdict(set)
    for place, samples in faults.items():
        for fault in samples.values():
            rows[fault].add(place.operator)
    lines = ["| what | why | operators |", "|---|---|---|"]
    for fault in sorted(rows, key=lambda f: (KINDS.index(f.what), f.reason)):
        names = ", ".join(f"`{name}`" for name in sorted(rows[fault]))
        lines.append(f"| {_WHAT[fault.what]} | {fault.reason} | {names} |")
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n" + "\n".join(lines) + f"\n{_END}{after}"


def _samples(text: str) -> Iterable[int]:
    for part in text.split(", "):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _ranges(samples: list[int]) -> str:
    """Returns [0, 1, 2, 5] as "0-2, 5"."""
    parts: list[list[int]] = []
    for sample in samples:
        if parts and parts[-1][1] == sample - 1:
            parts[-1][1] = sample
        else:
            parts.append([sample, sample])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def main() -> None:
    """Updates the table in docs/debugging.md, from the repository's root."""
    page = Path("docs/debugging.md")
    page.write_text(with_table(page.read_text(), read()))


if __name__ == "__main__":
    main()
