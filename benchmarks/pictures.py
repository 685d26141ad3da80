"""Draws the pictures of docs/performance.md and README from the benchmarks' JSON files.

  python benchmarks/pictures.py step.json peer.json --output=docs/pictures

The files are decode_step.py's; results of one shape are drawn side by side, whichever files they
are from. It writes decode_step.svg, the time of a step by way, and host_time.svg, the host's part.
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
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
        f'viewBox="0 0 {WIDTH} {y}" role="img" aria-label="{escape(title)}">'
        "<style>text{font:13px sans-serif;fill:#24292f}.title{font-weight:bold;font-size:15px}"
        ".group{font-weight:bold}</style>"
        f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>'
        f'<text x="8" y="24" class="title">{escape(title)}</text>' + "".join(parts) + "</svg>\n"
    )


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
    pictures = {
        "decode_step": (
            f"A step of decoding, waited for ({device})",
            by_shape(results, "waited", tuple(NAMES)),
        ),
        "host_time": (
            f"The host's part of it ({device})",
            by_shape(results, "host", ("lazy", "openxla", "captured")),
        ),
    }
    for name, (title, groups) in pictures.items():
        if groups:
            path = args.output / f"{name}.svg"
            path.write_text(bars(title, "ms", groups))
            print(path)


if __name__ == "__main__":
    main()
