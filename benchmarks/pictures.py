"""Draw the pictures of the docs and the README from the benchmarks' JSON files.

  python benchmarks/pictures.py step.json peer.json --output=docs/pictures

From files of decode_step.py: decode_step.svg, in which results for the same shape are drawn side by
side, even if they are from different files. From two files of serving.py, of both engines:
serving.svg (new tokens per second).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
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
    """Draw horizontal bars in named groups; with `each`, scale each group separately."""
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


def draw_steps(results: list[dict[str, Any]]) -> dict[str, str]:
    """Draw the pictures of decode_step.py's results, by name."""
    shapes: dict[str, dict[str, float]] = {}
    for result in results:
        plural = "" if result["seqs"] == 1 else "s"
        name = f"{result['seqs']} sequence{plural} of {result['length']:,} tokens"
        shapes.setdefault(name, {})[result["way"]] = result["waited"]
    groups = {
        name: [Bar(NAMES[way], COLORS[way], values[way]) for way in NAMES if way in values]
        for name, values in shapes.items()
    }
    title = f"Latency of a decode step ({results[0]['device']})"
    return {"decode_step": bars(title, "ms", groups)}


def draw_serving(files: list[list[dict[str, Any]]]) -> dict[str, str]:
    """Draw the pictures of serving.py's results, by name: a file for each engine, ours first."""
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
        if "engine" in found[0]:
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
