"""The README's picture: one training step of the photographs, by what was added, drawn from its record.

The length of a bar is a step's time, and the line at its end is the 95 % interval of the ratio to the naive script. An
SVG follows the light or dark of whoever reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

RECORD = Path(__file__).resolve().parent.parent / "records" / "pipeline-images" / "2-cores-intel-xeon-processor"

NAMES = {  # of the record's arms, in words
    "job without a plan": "as a hasten Job",
    "+ cache": "+ cache of decoded images",
    "+ precision bf16": "+ bfloat16 autocast",
    "+ channels_last": "+ channels_last",
    "+ allocator keep_freed_memory": "+ allocator keeps freed memory",
}

WIDTH, LEFT, RIGHT = 860, 250, 190  # pixels: of the picture, of the names, of the figures
ROW, TOP = 38, 74
STYLE = """
text { font: 15px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
.title { font-size: 18px; font-weight: 600 } .small { font-size: 13px; fill: #59636e }
.card { fill: #ffffff; stroke: #d1d9e0 } .base { fill: #afb8c1 } .bar { fill: #0f766e } .range { stroke: #1f2328 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #9198a1 } .card { fill: #0d1117; stroke: #3d444d }
.base { fill: #656c76 } .bar { fill: #2dd4bf } .range { stroke: #f0f6fc } }
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """share: of the baseline's step time, 0 to 1, with its interval. ratio: as text; empty for the baseline."""

    name: str
    share: float
    low: float
    high: float
    ratio: str


def bars(result: Mapping[str, Any]) -> list[Bar]:
    found = [Bar(name=result["baseline"], share=1, low=1, high=1, ratio="")]
    for comparison in result["comparisons"]:
        speedup = comparison["speedup"]
        ratio, low, high = speedup["ratio"], speedup["low"], speedup["high"]
        text = f"{ratio:.2f}× ({low:.2f}–{high:.2f})"
        found.append(Bar(name=NAMES[comparison["arm"]], share=1 / ratio, low=1 / high, high=1 / low, ratio=text))
    return found


def baseline_milliseconds(home: Path, baseline: str) -> float:
    """Median over the windows of the baseline."""
    samples = map(json.loads, (home / "samples.jsonl").read_text(encoding="utf-8").splitlines())
    return 1000 * median(each["seconds"] / each["steps"] for each in samples if each.get("arm") == baseline)


def picture(rows: Sequence[Bar], title: str, below: str) -> str:
    width, height = WIDTH - LEFT - RIGHT, TOP + ROW * len(rows) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        f'<text class="title" x="24" y="40">{escape(title)}</text>',
    ]
    for number, row in enumerate(rows):
        y = TOP + ROW * number
        middle = y + ROW / 2 - 4
        kind = "bar" if row.ratio else "base"
        lines.append(f'<text x="24" y="{middle + 5:g}">{escape(row.name)}</text>')
        lines.append(
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{row.share * width:.1f}" height="{ROW - 12}" rx="3"/>'
        )
        end = LEFT + max(row.share, row.high) * width + 12
        if row.ratio:
            low, high = (LEFT + each * width for each in (row.low, row.high))
            lines.append(f'<path class="range" d="M{low:.1f} {middle:g}H{high:.1f}"/>')
            lines.append(f'<text x="{end:.1f}" y="{middle + 5:g}">{escape(row.ratio)}</text>')
        else:
            lines.append(f'<text class="small" x="{end:.1f}" y="{middle + 5:g}">baseline</text>')
    lines.append(f'<text class="small" x="24" y="{height - 18}">{escape(below)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def photographs(home: Path = RECORD) -> str:
    result = json.loads((home / "result.json").read_text(encoding="utf-8"))
    machine = json.loads((home / "environment.json").read_text(encoding="utf-8"))
    milliseconds = baseline_milliseconds(home, result["baseline"])
    return picture(
        bars(result),
        f"One training step on photographs: {milliseconds:.0f} ms in a naive script",
        f"{machine['cores']} cores of an Intel Xeon with AMX · torch {machine['packages']['torch']} · "
        f"{result['control']['speedup']['pairs']} pairs of windows · 95 % intervals of the ratio",
    )
