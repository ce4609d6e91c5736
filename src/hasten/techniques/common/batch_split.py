"""Taking a batch in several parts: whether it can be, what it preserves, and how a Setup is told."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # torch has no public name for "any batch norm"

from hasten.errors import PlanError
from hasten.facts.choice import Preserves
from hasten.techniques.contract import No, Yes
from hasten.techniques.setup import Setup


def whole_batch(setup: Setup) -> int | None:
    """Samples in one optimizer step; None before the data was opened."""
    return setup.batch_size or setup.job.batch_size


def can_be_split(setup: Setup) -> Yes | No:
    """Whether there is a batch of known size with more than one sample."""
    batch_size = whole_batch(setup)
    if batch_size is None:
        return No("the job does not say how many samples a batch has")
    return Yes() if batch_size > 1 else No("a batch of one sample cannot be split")


def normalizes_by_batch(model: nn.Module, *, on_each_rank: bool = False) -> bool:
    """True when a sample's output in training depends on which others it is computed with. A batch norm in evaluation
    mode is frozen, and does not, unless it keeps no running averages. on_each_rank: of norms that know of no others."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    alone = [norm for norm in norms if not (on_each_rank and isinstance(norm, nn.SyncBatchNorm))]
    return any(norm.training or norm.running_mean is None for norm in alone)


def split_preserves(setup: Setup) -> Preserves:
    """Sums in another order; with batch norm also means and variances of other, smaller samples."""
    return Preserves.STATISTICS if normalizes_by_batch(setup.model) else Preserves.ROUNDING


def split_batch(setup: Setup, microbatch_size: int, technique: str) -> None:
    """Take every batch in parts of this many samples; the last part may be smaller. The batch stays what it is."""
    if setup.step.microbatch_size is not None:
        raise PlanError(
            f"the batch is already taken in parts of {setup.step.microbatch_size}",
            where=technique,
            fix="keep one of accumulation and microbatch",
        )
    setup.step.microbatch_size = microbatch_size
    if normalizes_by_batch(setup.model):
        setup.notices.append(
            f"batch norm sees {microbatch_size} samples at a time instead of the whole batch: its statistics are "
            "noisier, and its running averages move once for each part"
        )
