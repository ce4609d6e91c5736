"""Which blocks are in which stage, and which rank holds what: stage s is on rank s modulo the number of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import nn

from hasten.facts.ranks import Ranks
from hasten.parallel.pipeline.block_order import refused
from hasten.parallel.sharding import Sharding


class Stages:
    """names: of all blocks, in order. before: the numbers of the blocks that begin the second and later stages."""

    def __init__(self, names: Sequence[str], before: Sequence[int], ranks: Ranks) -> None:
        self.names, self.ranks = names, ranks
        self.spans = [range(start, stop) for start, stop in pairwise([0, *before, len(names)])]
        self.first_blocks = [names[number] for number in before]
        self.own = [stage for stage in range(len(self.spans)) if self.rank_of(stage) == ranks.rank]

    @property
    def all_blocks(self) -> range:
        return range(len(self.names))

    @property
    def last(self) -> int:
        return len(self.spans) - 1

    @property
    def has_last(self) -> bool:
        """Whether this rank computes the loss."""
        return self.last in self.own

    def rank_of(self, stage: int) -> int:
        return stage % self.ranks.size


def least_largest(costs: Sequence[float], parts: int) -> tuple[int, ...]:
    """The positions, from 1 on, before which a row is cut into `parts` runs of at least one item, so that the largest
    sum of a run is minimal: the slowest stage decides how fast a pipeline is.

    costs: of each item, 0 or more. Raises ValueError for fewer items than parts.
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


def owned_parameters(
    model: nn.Module, stages: Stages, layers: Sharding
) -> tuple[dict[str, int], dict[str, torch.Size], dict[str, int]]:
    """Of all parameters of blocks the owner and the whole shape, by every name that they have; of buffers of blocks the
    rank that updates them. layers: how several ranks share them.

    Raises Misconfigured for a parameter of a block that another part of the model uses.
    """
    owners, shapes, buffers = dict[str, int](), dict[str, torch.Size](), dict[str, int]()
    places = Counter(each for _, each in model.named_parameters(remove_duplicate=False))
    for stage, span in enumerate(stages.spans):
        for block in (stages.names[number] for number in span):
            module, rank = model.get_submodule(block), stages.rank_of(stage)
            inside = [*module.named_parameters(block, remove_duplicate=False)]
            times = Counter(each for _, each in inside)
            for name, each in inside:
                if places[each] != times[each]:
                    raise refused(f"{name} is a parameter of another part of the model as well")
                owners[name], shapes[name] = rank, layers.mark(name, each).shape
            buffers |= {name: rank for name, _ in module.named_buffers(block)}
    return owners, shapes, buffers
