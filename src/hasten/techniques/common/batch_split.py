"""Split a batch into microbatches: whether that is possible, what it preserves, and how a Setup asks for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hasten.data.loading.device_transfer import map_tensors
from hasten.data.order.randomness import is_generator
from hasten.errors import JobError
from hasten.facts.choice import Preserves
from hasten.facts.job import Job
from hasten.techniques.common.torch_internals import BatchNorm
from hasten.techniques.contract import No, Yes
from hasten.techniques.setup import Setup


def whole_batch(setup: Setup) -> int | None:
    """Samples in one optimizer step; None before the data was opened."""
    return setup.batch_size or setup.job.batch_size


def can_be_split(setup: Setup) -> Yes | No:
    """Whether there is a batch of known size with more than one sample."""
    batch_size = whole_batch(setup)
    if batch_size is None:
        return No("the batch size is unknown; write Job.batch_size")
    return Yes() if batch_size > 1 else No("a batch of one sample cannot be split")


def normalizes_by_batch(model: nn.Module, *, on_each_rank: bool = False) -> bool:
    """Whether a sample's output in training depends on the other samples in its batch.

    A batch norm in evaluation mode is frozen and does not count, unless it has no running averages. on_each_rank: do
    not count norms that are synchronized between ranks.
    """
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    alone = [norm for norm in norms if not (on_each_rank and isinstance(norm, nn.SyncBatchNorm))]
    return any(norm.training or norm.running_mean is None for norm in alone)


def changed_by_loss(job: Job) -> list[str]:
    """Where the job declares state that its loss or its model changes, generators excluded."""
    names = [f"Job.state[{name!r}]" for name, part in job.state.items() if not is_generator(part)]
    of_loss = getattr(job.loss, "state_dict", dict)
    return [*names, "Job.loss"] if of_loss() else names


def split_preserves(setup: Setup) -> Preserves:
    """Rounding, as sums are added in another order; with batch norm only the statistics. State that the loss changes
    is changed more often."""
    if changed_by_loss(setup.job):
        return Preserves.TRAINING
    return Preserves.STATISTICS if normalizes_by_batch(setup.model) else Preserves.ROUNDING


def split_batch(setup: Setup, microbatch_size: int) -> None:
    """Split every batch into parts of this many samples; the last part may be smaller. The batch does not change."""
    setup.step.microbatch_size = microbatch_size
    if normalizes_by_batch(setup.model):
        setup.notices.append(
            f"batch norm sees {microbatch_size} samples at a time instead of the whole batch: its statistics are "
            "noisier, and its running averages are updated once for each part"
        )
    if changed := changed_by_loss(setup.job):
        setup.notices.append(
            f"{', '.join(changed)} changes once for each part of {microbatch_size} samples, not once for each update"
        )


def few_samples(batch: Any, samples: int) -> Any:
    """A batch of this many samples: the first ones, repeated where the batch has fewer.

    The rows of the batch's first tensor are its samples; every tensor with as many rows is cut with it. Raises JobError
    where no tensor in the batch has rows.
    """
    rows = list[int]()

    def note(tensor: Tensor) -> Tensor:
        rows.extend(tensor.shape[:1])
        return tensor

    map_tensors(batch, note)
    if not rows or not rows[0]:
        raise JobError(
            "train",
            "returns batches in which no tensor has a row for each sample, so they cannot be cut to another size",
            "return batches of tensors, in tuples, lists, dictionaries or dataclasses",
        )
    chosen = torch.arange(samples) % rows[0]
    return map_tensors(batch, lambda tensor: tensor[chosen] if tensor.shape[:1] == (rows[0],) else tensor)
