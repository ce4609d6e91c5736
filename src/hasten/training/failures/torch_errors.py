"""Errors of torch that do not name their cause, as errors that say what to do."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from hasten.errors import HastenError, JobError, Misconfigured
from hasten.techniques.common.batch_split import few_samples
from hasten.users_code import reason_of, text_of

_OF_A_LOSS = (HastenError, RuntimeError, TypeError, AttributeError, LookupError, AssertionError, ArithmeticError)
# Torch's words.
_ONE_VALUE = "Expected more than 1 value per channel"
_TWICE = "marked as ready twice"
_NOT_FOR_DTENSOR = (
    "Sharding propagation failed",
    "in-place operations that require placement changes",
    "does not have a sharding strategy registered",
    "mixed torch.Tensor and DTensor",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchErrors:
    """replicated, sharded: how several ranks hold the model."""

    replicated: bool
    sharded: bool

    def __call__(self, error: BaseException, samples: int, *, is_updating: bool) -> HastenError | None:
        """None for any other error. samples: of this rank's microbatch. is_updating: raised inside the optimizers."""
        text = reason_of(error)
        if _ONE_VALUE in text and samples < 2:
            return _one_sample("leaves this process one sample of a batch")
        if _TWICE in text and self.replicated:
            what = "runs several backward passes in one step, as reentrant torch.utils.checkpoint does"
            fix = "call checkpoint with use_reentrant=False, or add `communication` with static_graph = true"
            return JobError("model", what, fix)
        if is_updating and self.sharded and any(each in text for each in _NOT_FOR_DTENSOR):
            what = f"{optimizer_in(error)} uses an operation that torch does not have for sharded parameters"
            return Misconfigured(what, where="shard", fix="use another optimizer, or remove `shard` from the plan")
        return None


def refuse_one_sample(compute: Callable[[Any], object], batch: Any) -> None:
    """For a job whose last batch of an epoch has a microbatch of one sample. compute: the loss of a batch, in training
    mode, which changes nothing. Raises JobError where batch norm needs more than one value, as not all of them do."""
    try:
        with torch.no_grad():
            compute(few_samples(batch, 1))
    except ValueError as error:
        if _ONE_VALUE in text_of(error):
            raise _one_sample("leaves one sample for an epoch's last microbatch") from error
    except _OF_A_LOSS:
        return  # the step itself shows what is wrong with the loss


def _one_sample(what: str) -> JobError:
    fix = "set drop_last=True if it is an epoch's last batch, or change the size"
    return JobError("batch_size", f"{what}, but batch norm needs more than one", fix)


def optimizer_in(error: BaseException) -> str:
    """The class of the optimizer that it came through."""
    callers = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((type(each).__name__ for each in callers if isinstance(each, Optimizer)), "the optimizer")
