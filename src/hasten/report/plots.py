"""Images of a run's learning rate, from plain lists of numbers.

The same numbers give the same bytes. matplotlib takes half a second to load, so only drawing loads it.
"""

# matplotlib annotates its functions but for their keyword arguments.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES = (7.0, 3.2)
_RATE, _MOMENTUM, _MARK = "#1f5fa8", "#c0712c", "#a8322a"


def draw_schedule(
    steps: Sequence[int], rates: Sequence[float], momenta: Sequence[float | None], *, note: str = ""
) -> Figure:
    """Learning rate, and below it momentum or the first beta, against optimizer steps.

    steps, rates, momenta: of one length; a None among the momenta is a gap; without a momentum there is one picture.
    note: shown under the title.
    """
    cycles = any(momentum is not None for momentum in momenta)
    figure = _figure(2 if cycles else 1)
    upper, *lower = figure.subplots(2 if cycles else 1, 1, sharex=True, squeeze=False)[:, 0]
    upper.set_title("\n".join(filter(None, ["learning rate of the planned run", note])), fontsize="medium")
    upper.plot(steps, rates, color=_RATE)
    upper.set_ylabel("learning rate")
    upper.set_ylim(bottom=min(0.0, *rates))
    for axes in lower:
        axes.plot(steps, [math.nan if momentum is None else momentum for momentum in momenta], color=_MOMENTUM)
        axes.set_ylabel("momentum")
    (lower[-1] if lower else upper).set_xlabel("optimizer step")
    return figure


def draw_range_test(rates: Sequence[float], losses: Sequence[float], suggested: float | None) -> Figure:
    """Loss against the logarithm of the rate, with a line at the suggested rate where there is one.

    rates, losses: of one length, in the order they were tried. Losses that are not finite are gaps.
    """
    figure = _figure(1)
    axes = figure.subplots()
    axes.set_title("learning-rate range test", fontsize="medium")
    axes.plot(rates, [loss if math.isfinite(loss) else math.nan for loss in losses], color=_RATE)
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss")
    if suggested is not None:
        axes.axvline(suggested, color=_MARK, linestyle="--", label=f"suggested: {suggested:.3g}")
        axes.legend(frameon=False)
    return figure


def as_png(figure: Figure) -> bytes:
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=144, metadata={"Software": None})
    return written.getvalue()


def _figure(rows: int) -> Figure:
    from matplotlib.figure import Figure

    width, height = _INCHES
    return Figure(figsize=(width, height * (1 + 0.6 * (rows - 1))), layout="constrained")
