"""Models whose layers are not called alike by all ranks, as what they call depends on the samples or on chance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hasten.entry import prepare
from hasten.errors import HastenError
from hasten.facts.plan import make_plan
from support.parallel.pipeline_models import Untied
from support.parallel.tensor_models import LENGTH, WIDTH, WORDS
from support.ranks.word_jobs import job_on_words


class Adapter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, stream: Tensor) -> Tensor:
        return self.mix(stream)


class Adapted(Untied):
    """Each sample goes through the adapter that its first word says."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters = nn.ModuleList(Adapter() for _ in range(4))

    def forward(self, words: Tensor) -> Tensor:
        stream = self.words(words)
        ways = [self.adapters[int(first) % 4](one) for one, first in zip(stream, words[:, 0], strict=True)]
        stream = stream + torch.stack(ways)
        for block in self.blocks:
            stream = block(stream)
        return self.head(stream)


class Fewer(Untied):
    """Other ranks than the first call one block less."""

    def forward(self, words: Tensor) -> Tensor:
        stream = self.words(words)
        for block in list(self.blocks)[: 4 - min(dist.get_rank(), 1)]:
            stream = block(stream)
        return self.head(stream)


class Checkpointed(Untied):
    """By itself: its backward pass calls layers again."""

    def forward(self, words: Tensor) -> Tensor:
        stream = self.words(words)
        for block in self.blocks:
            stream = checkpoint(block, stream, use_reentrant=False)
        return self.head(stream)


MODELS = {"by sample": Adapted, "fewer": Fewer, "checkpointed": Checkpointed}


def told(name: str, choices: Mapping[str, Any]) -> str:
    """What an epoch is refused with."""
    job = job_on_words(MODELS[name], WORDS, LENGTH, batch_size=4, clip_norm=None, epochs=1, metrics={})
    try:
        with prepare(job, make_plan(**choices)) as run:
            for batch in run.epoch_batches():
                run.step(batch)
    except HastenError as error:
        return str(error)
    return ""
