"""Where blocks are cut into stages so that the slowest stage is as fast as possible: all others wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def least_largest(costs: Sequence[float], parts: int) -> tuple[int, ...]:
    """The positions, from 1 on, before which a row is cut into `parts` runs of at least one item, so that the largest
    sum of a run is the least that there is. Of several such ways the one whose first cuts come first.

    costs: of each item, 0 or more. Raises ValueError for fewer items than parts.

    Exact, in parts · items² steps, of which models with hundreds of blocks take some ten thousand.
    """
    if not 0 < parts <= len(costs):
        raise ValueError(f"{len(costs)} items cannot be cut into {parts} runs")
    sums = [0.0, *accumulate(costs)]
    # best[n]: the largest sum and the cuts of the first n items in the present number of runs
    best: dict[int, tuple[float, tuple[int, ...]]] = {n: (sums[n], ()) for n in range(1, len(costs) + 1)}
    for run in range(2, parts + 1):
        best = {
            n: min((max(best[cut][0], sums[n] - sums[cut]), (*best[cut][1], cut)) for cut in range(run - 1, n))
            for n in range(run, len(costs) + 1)
        }
    return best[len(costs)][1]
