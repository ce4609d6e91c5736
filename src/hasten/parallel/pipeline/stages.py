"""Which blocks are in which stage, and which rank holds what: stage s is on rank s modulo the number of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

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

    def rank_of(self, stage: int) -> int:
        return stage % self.ranks.size


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
