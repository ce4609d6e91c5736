"""The job's optimizers, made from its own function. Making one is cheap and moves nothing, so techniques may look."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hasten.errors import HastenError, JobError, UserCodeFailed
from hasten.facts.job import Job, describe
from hasten.techniques.setup import Setup

_ONE = "return one optimizer, or a list of them: lambda params: torch.optim.AdamW(params, lr=1e-3)"


def parameters_given(job: Job, model: nn.Module) -> list[Any]:
    """What the job's optimizer function is called with: parameters, (name, parameter) pairs, or groups as dictionaries.

    Raises JobError when Job.parameters returns nothing of that.
    """
    given = model.parameters() if job.parameters is None else job.parameters(model)
    if isinstance(given, Tensor) or not isinstance(given, Iterable):
        raise JobError("parameters", f"returns {describe(given)}", "return parameters, or a list of parameter groups")
    return [_with_a_list(item) for item in given]


def make_optimizers(job: Job, given: list[Any]) -> list[Optimizer]:
    """The job's optimizers over these parameters. Raises JobError when its function returns something else, and
    UserCodeFailed when it raises."""
    try:
        made = job.optimizer(given)
    except HastenError:
        raise
    except Exception as error:
        raise UserCodeFailed(f"raised {type(error).__name__}: {error}", where="Job.optimizer") from error
    optimizers: list[Any] = list(made) if isinstance(made, list | tuple) else [made]
    if not optimizers:
        raise JobError("optimizer", "returns an empty list", _ONE)
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise JobError("optimizer", f"returns {describe(optimizer)}", _ONE)
    return optimizers


def present_optimizers(setup: Setup) -> list[Optimizer]:
    """Optimizers as the job would start with on this Setup's model, to be looked at and thrown away."""
    return make_optimizers(setup.job, parameters_given(setup.job, setup.model))


def _with_a_list(item: Any) -> Any:
    """The item; where it is a group, a new one whose parameters can be walked more than once."""
    if not isinstance(item, dict):
        return item
    if "params" not in item:
        raise JobError("parameters", f'gives a group without "params": {describe(item)}', 'write {"params": […], …}')
    params = item["params"]
    return {**item, "params": [params] if isinstance(params, Tensor) else list(params)}
