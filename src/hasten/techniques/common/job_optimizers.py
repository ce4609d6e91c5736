"""The job's optimizers, built by its own function. Building is cheap and changes nothing, so techniques may inspect
them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hasten.errors import HastenError, JobError, UserCodeFailed
from hasten.facts.job import Job, describe
from hasten.techniques.setup import Setup
from hasten.users_code import reason_of, users_frame

_ONE = "return one optimizer, or a list of them: lambda params: torch.optim.AdamW(params, lr=1e-3)"


def parameters_given(job: Job, model: nn.Module) -> list[Any]:
    """The argument of the job's optimizer function: parameters, (name, parameter) pairs, groups as dictionaries, or
    lists of parameters, such as one for each of several optimizers.

    None is dropped from what Job.parameters returns: the bias of a layer that has none, or has lost it by a technique.
    Raises JobError when no parameters are left.
    """
    if job.parameters is None:
        return list(model.parameters())
    given = job.parameters(model)
    if isinstance(given, Tensor) or not isinstance(given, Iterable):
        raise JobError("parameters", f"returns {describe(given)}", "return parameters, or a list of parameter groups")
    items = [_with_a_list(item) for item in given if item is not None]
    if all(_is_empty(item) for item in items):
        raise JobError("parameters", "returns nothing to train", "return parameters, or groups that are not empty")
    return items


def make_optimizers(job: Job, given: list[Any]) -> list[Optimizer]:
    """The job's optimizers for these parameters. Raises JobError when its function returns something else, and
    UserCodeFailed when it raises."""
    try:
        made = job.optimizer(given)
    except HastenError:
        raise
    except Exception as error:
        fix = f"look at {users_frame(error)}"
        raise UserCodeFailed(f"raised {reason_of(error)}", where="Job.optimizer", fix=fix) from error
    optimizers: list[Any] = list(made) if isinstance(made, list | tuple) else [made]
    if not optimizers:
        raise JobError("optimizer", "returns an empty list", _ONE)
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise JobError("optimizer", f"returns {describe(optimizer)}", _ONE)
    return optimizers


def present_optimizers(setup: Setup) -> list[Optimizer]:
    """The job's optimizers for this Setup's model, to be inspected and dropped."""
    return make_optimizers(setup.job, parameters_given(setup.job, setup.model))


def has_momentum(optimizer: Optimizer) -> bool:
    """In all groups."""
    return all(group["betas"][0] if "betas" in group else group.get("momentum") for group in optimizer.param_groups)


def _with_a_list(item: Any) -> Any:
    """The item; of a group or several parameters, with a list of these, which can be read more than once."""
    match item:
        case Tensor() | (str(), Tensor()):
            return item
        case dict():
            if "params" not in item:
                what = f'gives a group without "params": {describe(item)}'
                raise JobError("parameters", what, 'write {"params": […], …}')
            params = item["params"]
            if not isinstance(params, Iterable):
                what = f"gives a group whose params are {describe(params)}"
                raise JobError("parameters", what, 'write {"params": […], …}')
            return {**item, "params": [params] if isinstance(params, Tensor) else _present(params)}
        case _ if isinstance(item, Iterable) and not isinstance(item, str):
            return _present(item)
        case _:
            raise JobError("parameters", f"gives {describe(item)}", "return parameters, lists of them, or groups")


def _is_empty(item: Any) -> bool:
    return isinstance(item, dict | list) and not (item["params"] if isinstance(item, dict) else item)


def _present(parameters: Iterable[Any]) -> list[Any]:
    return [each for each in parameters if each is not None]
