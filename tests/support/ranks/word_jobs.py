"""Jobs that learn which word follows; what runs of several ranks have in common, in a module that these can import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.entry import prepare
from hasten.facts.job import Loss
from hasten.facts.plan import make_plan
from hasten.training.state.sharded_state import whole_state


def loss(model: nn.Module, batch: Any) -> Loss:
    """Of the words that count, of which a batch may have any number."""
    words, following = batch
    scores = model(words).flatten(0, 1)
    counted = following.flatten() % 4 != 0
    each = functional.cross_entropy(scores, following.flatten(), reduction="none")
    return Loss((each * counted).sum(), counted.sum(), prediction=scores, target=following.flatten())


def job_on_words(model: Callable[[], nn.Module], words: int, length: int, /, **changes: Any) -> hasten.Job:
    """On 37 samples, so that an epoch's last window is a short one. words: that there are."""
    generator = torch.Generator().manual_seed(7)
    found = torch.randint(0, words, (37, length + 1), generator=generator)
    data = (found[:, :-1], found[:, 1:])
    fields: dict[str, Any] = {
        "model": lambda: model().double(),
        "loss": loss,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        "train": data,
        "valid": tuple(each[:11] for each in data),
        "batch_size": 10,
        "epochs": 3,
        "clip_norm": 0.5,
        "log_every": 1,
    }
    return hasten.Job(**(fields | changes))


def gone_on_from(
    step: int, job: Callable[[], hasten.Job], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The weights of a run that goes on by another plan after this step, in the middle of an epoch."""
    with prepare(job(), make_plan(**before)) as run:
        for batch in run.batches():
            run.step(batch)
            if run.steps == step:
                break
        state = whole_state(run.state_dict(), run.built.strategy.sharding, run.ranks, on_all=True)
    with prepare(job(), make_plan(**after)) as run:
        run.load_state_dict(state)
        for batch in run.batches():
            run.step(batch)
        return run.weights()
