"""Draws the pictures of docs/performance.md and README from the benchmarks' JSON files.

  python benchmarks/pictures.py step.json peer.json --output=docs/pictures

The files are decode_step.py's; results of one shape are drawn side by side, whichever files they
are from. It writes decode_step.svg, the time of a step by way; host_time.svg, the host's part; and,
from results of several numbers of layers, host_by_inputs.svg.
"""

from __future__ import annotations

import argparse
import json
from html import escape
from pathlib import Path
from typing import Any

NAMES = {
    "lazy": "lazy",
    "openxla": "torch.compile, openxla",
    "captured": "torch_xla_ext.capture",
    "peer": "CUDA torch, CUDA graph",
}
COLORS = {"lazy": "#9aa5b1", "openxla": "#5b8def", "captured": "#1b7f5c", "peer": "#d98032"}
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


def bars(title: str, unit: str, groups: list[tuple[str, list[tuple[str, float]]]]) -> str:
    """Horizontal bars: for each group its name, and ways with their values."""
    largest = max(value for _, values in groups for _, value in values)
    scale = (WIDTH - LEFT - 90) / largest
    y, parts = 44, []
    for name, values in groups:
        parts.append(f'<text x="8" y="{y + 12}" class="group">{escape(name)}</text>')
        y += 20
        for way, value in values:
            width = max(value * scale, 1)
            middle = y + BAR / 2 + 4
            parts.append(
                f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{escape(NAMES[way])}</text>'
                f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3" '
                f'fill="{COLORS[way]}"/>'
                f'<text x="{LEFT + width + 6:.1f}" y="{middle}">{value:.2f} {unit}</text>'
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
    for way, found in points.items():
        places = [place(*point) for point in found]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{COLORS[way]}" stroke-width="2.5"/>'
        )
        for x, y in places:
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLORS[way]}"/>')
        x, y = places[-1]
        parts.append(f'<text x="{x + 10:.1f}" y="{y + 4:.1f}">{escape(NAMES[way])}</text>')
    parts.append(
        f'<text x="{(left + right) / 2}" y="{bottom + 40}" text-anchor="middle">'
        "tensors that a step reads</text>"
        f'<text x="8" y="46">ms</text>'
    )
    return svg(title, height, parts)


def by_shape(
    results: list[dict[str, Any]], value: str, ways: tuple[str, ...]
) -> list[tuple[str, list[tuple[str, float]]]]:
    """Groups of results that have this value, in the order of NAMES."""
    shapes: dict[str, dict[str, float]] = {}
    for result in results:
        if result["way"] in ways:
            name = f"{result['seqs']} sequences of {result['length']:,} tokens"
            shapes.setdefault(name, {})[result["way"]] = result[value]
    return [
        (name, [(way, values[way]) for way in NAMES if way in values])
        for name, values in shapes.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path, help="JSON files")
    parser.add_argument("--output", type=Path, default=Path(), help="folder")
    args = parser.parse_args()
    results = [result for path in args.results for result in json.loads(path.read_text())]
    device = results[0]["device"]
    args.output.mkdir(parents=True, exist_ok=True)
    # Of several models the largest stands for them.
    layers = max(result["layers"] for result in results)
    largest = [result for result in results if result["layers"] == layers]
    pictures = {
        "decode_step": (
            f"A step of decoding, waited for ({device})",
            by_shape(largest, "waited", tuple(NAMES)),
        ),
        "host_time": (
            f"The host's part of it ({device})",
            by_shape(largest, "host", ("lazy", "openxla", "captured")),
        ),
    }
    drawn = {
        name: bars(title, "ms", groups) for name, (title, groups) in pictures.items() if groups
    }
    if len(largest) < len(results):
        drawn["host_by_inputs"] = lines(
            f"Host time of a step by its inputs ({device})",
            results,
            ("lazy", "openxla", "captured"),
        )
    for name, picture in drawn.items():
        path = args.output / f"{name}.svg"
        path.write_text(picture)
        print(path)


if __name__ == "__main__":
    main()
