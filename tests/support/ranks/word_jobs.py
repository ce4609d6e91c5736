"""Jobs that learn which word follows; what runs of several ranks have in common, in a module that these can import."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.entry import prepare
from hasten.errors import HastenError
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


def trained(job: hasten.Job, choices: Mapping[str, Any]) -> dict[str, Any]:
    """A whole run with an evaluation after each epoch: what it leaves, and how much of the weights this rank held."""
    with prepare(job, make_plan(**choices)) as run:
        results, norms = list[float](), list[float]()
        for _ in range(run.total_epochs or 0):
            for batch in run.epoch_batches():
                run.step(batch)
                norms += [run.gradient_norm or 0.0] if run.window_closed else []
            results += run.evaluate().results.values()
        return {
            "weights": run.weights(),
            "losses": [window.mean for window in run.losses.drain()],
            "norms": norms,
            "results": results,
            "held": sum(each.numel() for each in run.model.parameters()),
            "unreached": sorted(run.built.step.unreached or ()),
        }


def skipped_alike(job: hasten.Job, choices: Mapping[str, Any], held: str) -> list[Any]:
    """An infinity in the gradient of a weight that the second rank holds, in the second step: what each rank did."""
    with prepare(job, make_plan(**choices)) as run:
        batches = run.batches()
        run.step(next(batches))
        while not run.window_closed:
            run.step(next(batches))
        before = [each.detach().clone() for each in run.model.parameters()]
        if run.ranks.rank == 1:
            run.model.get_parameter(held).register_hook(lambda gradient: gradient * math.inf)
        try:
            for batch in batches:
                run.step(batch)
        except HastenError as error:
            same = all(map(torch.equal, before, run.model.parameters()))
            return [type(error).__name__, same]
    return []


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
