"""Draws the pictures in the docs and the README from the benchmarks' JSON files.

  python benchmarks/pictures.py step.json peer.json --output=docs/pictures

From files of decode_step.py: decode_step.svg (time of a step), host_time.svg (host time) and, if
there are results for several numbers of layers, host_by_inputs.svg. Results for the same shape are
drawn side by side, even if they are from different files. From a file of paged_attention.py:
attention_decode.svg (decode speed as a share of a copy's) and attention_prefill.svg. From two
files of serving.py, of both engines: serving.svg (new tokens per second).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from html import escape
from pathlib import Path
from typing import Any

NAMES = {
    "lazy": "lazy",
    "openxla": "torch.compile, openxla",
    "captured": "torch_xla_ext.capture",
    "peer": "PyTorch, CUDA graph",
}
COLORS = {"lazy": "#9aa5b1", "openxla": "#5b8def", "captured": "#1b7f5c", "peer": "#d98032"}
ATTENTION_COLORS = {
    "paged_attention": "#1b7f5c",
    "ragged_paged_attention": "#5fae8c",
    "FlashInfer, tensor cores": "#d98032",
    "FlashInfer fa3": "#d98032",
    "SDPA cuDNN, dense": "#5b8def",
    "SDPA flash, dense": "#9aa5b1",
}
WIDTH, LEFT, BAR, GAP = 760, 200, 22, 6


def svg(title: str, height: int, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        "<style>text{font:13px sans-serif;fill:#24292f}.title{font-weight:bold;font-size:15px}"
        ".group{font-weight:bold}</style>"
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
        f'<text x="8" y="24" class="title">{escape(title)}</text>' + "".join(parts) + "</svg>\n"
    )


@dataclasses.dataclass
class Bar:
    label: str
    color: str
    value: float


def bars(
    title: str, unit: str, groups: dict[str, list[Bar]], digits: int = 2, each: bool = False
) -> str:
    """Horizontal bars in groups with names; with `each`, the longest of each group is as long."""
    longest = max(bar.value for group in groups.values() for bar in group)
    y, parts = 44, []
    for name, group in groups.items():
        scale = (WIDTH - LEFT - 130) / (max(bar.value for bar in group) if each else longest)
        parts.append(f'<text x="8" y="{y + 12}" class="group">{escape(name)}</text>')
        y += 20
        for bar in group:
            width = max(bar.value * scale, 1)
            middle = y + BAR / 2 + 4
            parts.append(
                f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{escape(bar.label)}</text>'
                f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3" '
                f'fill="{bar.color}"/>'
                f'<text x="{LEFT + width + 6:.1f}" y="{middle}">'
                f"{bar.value:,.{digits}f} {unit}</text>"
            )
            y += BAR + GAP
        y += 14
    return svg(title, y, parts)


def lines(title: str, results: list[dict[str, Any]], ways: tuple[str, ...]) -> str:
    """Host time over the number of inputs, a line for each way."""
    height, bottom, left, right = 360, 310, 60, WIDTH - 190
    points = {
        way: sorted((r["inputs"], r["host"]) for r in results if r["way"] == way) for way in ways
    }
    points = {way: found for way, found in points.items() if found}
    most_inputs = max(inputs for found in points.values() for inputs, _ in found)
    most_host = max(host for found in points.values() for _, host in found)

    def place(inputs: float, host: float) -> tuple[float, float]:
        return left + (right - left) * inputs / most_inputs, bottom - 250 * host / most_host

    parts = []
    for share in (0, 0.5, 1):
        x, y = place(share * most_inputs, share * most_host)
        parts.append(
            f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#d0d7de"/>'
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{share * most_host:.1f}</text>'
            f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">'
            f"{share * most_inputs:.0f}</text>"
        )
    label = math.inf
    for way, found in sorted(points.items(), key=lambda item: item[1][-1][1]):
        places = [place(*point) for point in found]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{COLORS[way]}" stroke-width="2.5"/>'
        )
        for x, y in places:
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLORS[way]}"/>')
        x, y = places[-1]
        label = min(y + 4, label - 16)  # above the one of a faster way
        parts.append(f'<text x="{x + 10:.1f}" y="{label:.1f}">{escape(NAMES[way])}</text>')
    parts.append(
        f'<text x="{(left + right) / 2}" y="{bottom + 40}" text-anchor="middle">'
        "tensors that a step reads</text>"
        f'<text x="8" y="46">ms</text>'
    )
    return svg(title, height, parts)


def by_shape(
    results: list[dict[str, Any]], value: str, ways: tuple[str, ...]
) -> dict[str, list[Bar]]:
    """Groups of results that have this value, in the order of NAMES."""
    shapes: dict[str, dict[str, float]] = {}
    for result in results:
        if result["way"] in ways:
            plural = "" if result["seqs"] == 1 else "s"
            name = f"{result['seqs']} sequence{plural} of {result['length']:,} tokens"
            shapes.setdefault(name, {})[result["way"]] = result[value]
    return {
        name: [Bar(NAMES[way], COLORS[way], values[way]) for way in NAMES if way in values]
        for name, values in shapes.items()
    }


def draw_steps(results: list[dict[str, Any]]) -> dict[str, str]:
    """Pictures by name, of decode_step.py's results."""
    device = results[0]["device"]
    # Of several models the largest stands for them.
    layers = max(result["layers"] for result in results)
    largest = [result for result in results if result["layers"] == layers]
    pictures = {
        "decode_step": (
            f"Latency of a decode step ({device})",
            by_shape(largest, "waited", tuple(NAMES)),
        ),
        "host_time": (
            f"Host time of a decode step ({device})",
            by_shape(largest, "host", ("lazy", "openxla", "captured")),
        ),
    }
    drawn = {
        name: bars(title, "ms", groups) for name, (title, groups) in pictures.items() if groups
    }
    if len(largest) < len(results):
        drawn["host_by_inputs"] = lines(
            f"Host time of a step by number of inputs ({device})",
            results,
            ("lazy", "openxla", "captured"),
        )
    return drawn


def draw_attention(measured: dict[str, Any]) -> dict[str, str]:
    """Pictures by name, of paged_attention.py's results."""
    pictures = {
        "attention_decode": ("Decode: share of a copy's speed", "%", "share_of_copy", 100),
        "attention_prefill": ("Prefill: TFLOP/s", "TFLOP/s", "teraflops", 1),
    }
    drawn = {}
    for name, (title, unit, value, scale) in pictures.items():
        groups: dict[str, list[Bar]] = {}
        for row in measured["rows"]:
            if row[value] is not None and row["name"] in ATTENTION_COLORS:
                bar = Bar(row["name"], ATTENTION_COLORS[row["name"]], scale * row[value])
                groups.setdefault(row["case"], []).append(bar)
        if groups:
            drawn[name] = bars(f"{title} ({measured['device']})", unit, groups, digits=0)
    return drawn


def draw_serving(files: list[list[dict[str, Any]]]) -> dict[str, str]:
    """Pictures by name, of serving.py's results: a file for each engine, ours first."""
    groups: dict[str, list[Bar]] = {}
    for (start, *rows), color in zip(files, (COLORS["captured"], COLORS["peer"]), strict=True):
        engine = start["engine"].split(",")[0].replace(" on torch_xla_ext", ", this wheel")
        for row in rows:
            if "load" in row:
                seqs, tokens = row["load"].split("x")
                plural = "" if seqs == "1" else "s"
                name = f"{seqs} sequence{plural} of {tokens.replace('+', ' + ')} tokens"
                bar = Bar(engine, color, row["new_tokens_a_second"])
                groups.setdefault(name, []).append(bar)
    device = files[0][0]["device"]
    title = f"New tokens per second, an 8B-shaped Llama in bfloat16 ({device})"
    return {"serving": bars(title, "tokens/s", groups, digits=0, each=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path, help="JSON files")
    parser.add_argument("--output", type=Path, default=Path(), help="folder")
    args = parser.parse_args()
    steps: list[dict[str, Any]] = []
    drawn: dict[str, str] = {}
    serving = []
    for path in args.results:
        found = json.loads(path.read_text())
        if isinstance(found, dict):
            drawn |= draw_attention(found)
        elif "engine" in found[0]:
            serving.append(found)
        else:
            steps += found
    if serving:
        drawn |= draw_serving(serving)
    if steps:
        drawn |= draw_steps(steps)
    args.output.mkdir(parents=True, exist_ok=True)
    for name, picture in drawn.items():
        path = args.output / f"{name}.svg"
        path.write_text(picture)
        print(path)


if __name__ == "__main__":
    main()
