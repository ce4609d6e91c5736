"""What torch raises in a step of several ranks because of how they share the work, in words that say what to do."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from torch.optim import Optimizer

from hasten.errors import HastenError, JobError, Misconfigured

if TYPE_CHECKING:
    from hasten.training.run import Run

# Torch's words.
_ONE_VALUE = "Expected more than 1 value per channel"
_TWICE = "marked as ready twice"
_NOT_OF_PARTS = (
    "Sharding propagation failed",
    "in-place operations that require placement changes",
    "does not have a sharding strategy registered",
    "mixed torch.Tensor and DTensor",
)


def named(run: Run, error: BaseException) -> HastenError | None:
    """None for what has nothing to do with it."""
    text = str(error)
    if _ONE_VALUE in text and run.ranks.many and run._samples < 2:
        what = "leaves this process a single sample of a batch, and a batch norm over samples alone needs several"
        return JobError("batch_size", what, "set drop_last=True, where it is an epoch's last batch, or another size")
    if _TWICE in text and run.replica is not None:
        what = "is differentiated in several backward passes of one step, as torch.utils.checkpoint makes it"
        fix = "call that with use_reentrant=False, or plan `communication` with options = { static_graph = true }"
        return JobError("model", what, fix)
    if run._step.moving and run.setup.shard is not None and any(each in text for each in _NOT_OF_PARTS):
        what = f"{_optimizer_in(error)} computes what torch does not compute of parameters in parts"
        return Misconfigured(what, where="shard", fix="take another optimizer, or leave `shard` out of the plan")
    return None


def _optimizer_in(error: BaseException) -> str:
    """The class of the one that raised it."""
    callers = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((type(each).__name__ for each in callers if isinstance(each, Optimizer)), "the optimizer")
