"""The weights of a run that are evaluated and kept: the average, else what the optimizers' eval() gives, else those of
training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hasten.training import over_ranks
from hasten.training.state.jobs_form import in_jobs_form, kept_on_host

if TYPE_CHECKING:
    from hasten.training.run import Run


def notices_of(run: Run) -> list[str]:
    if not run.modes or run.average is None:
        return []
    return [
        f"Job.average replaces the evaluation weights of {run.modes.names}: the mean of its training weights is "
        "evaluated and kept. Leave average out to use the optimizer's own"
    ]


@contextmanager
def in_place(run: Run) -> Iterator[None]:
    """The model holds them inside the block, and those of training, to the bit, after it."""
    with run.modes.evaluating(), nullcontext() if run.average is None else run.average.in_place():
        yield


def present(run: Run) -> dict[str, Tensor]:
    """What the model holds now, on the host and in the form of the job's own model. Ranks call it together."""
    weights = over_ranks.whole_state(run, over_ranks.marked(run, run.model.state_dict()), on_all=True)
    return kept_on_host(in_jobs_form(weights, run.setup))


def to_save(run: Run) -> dict[str, Any]:
    """The kept weights in the form of the job's own model, where they lie, with a mark on what ranks have shares of."""
    return over_ranks.marked(run, in_jobs_form(_state(run), run.setup))


def _state(run: Run) -> dict[str, Any]:
    if run.average is not None:
        return run.average.named(run.model)
    if not run.modes:
        return run.model.state_dict()
    with run.modes.evaluating():
        state: dict[str, Any] = run.model.state_dict()
        return {key: each.detach().clone() if isinstance(each, Tensor) else each for key, each in state.items()}
