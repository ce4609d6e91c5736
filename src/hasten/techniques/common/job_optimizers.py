"""The job's optimizers, built by its own function. Building is cheap and changes nothing, so techniques may inspect
them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hasten.errors import HastenError, JobError, PlanError, UserCodeFailed
from hasten.facts.job import Job, describe
from hasten.techniques.setup import Setup

_ONE = "return one optimizer, or a list of them: lambda params: torch.optim.AdamW(params, lr=1e-3)"


def parameters_given(job: Job, model: nn.Module, removed: Mapping[str, nn.Parameter] | None = None) -> list[Any]:
    """The argument of the job's optimizer function: parameters, (name, parameter) pairs, or groups as dictionaries.

    removed: parameters that a technique removed from the model, by name. Job.parameters is called with them in place,
    and
        they are dropped from its result. A group may become empty.

    Raises JobError when Job.parameters returns no parameters, and PlanError when it returns only removed ones.
    """
    if job.parameters is None:
        return list(model.parameters())
    removed = removed or {}
    with _put_back(model, removed):
        given = job.parameters(model)
        if isinstance(given, Tensor) or not isinstance(given, Iterable):
            fix = "return parameters, or a list of parameter groups"
            raise JobError("parameters", f"returns {describe(given)}", fix)
        items = [_with_a_list(item) for item in given]
    if not _holds_any(items):
        raise JobError("parameters", "returns nothing to train", "return parameters, or groups that hold some")
    gone = {id(parameter) for parameter in removed.values()}
    present = [item for item in items if isinstance(item, dict) or id(_parameter_of(item)) not in gone]
    left = [_without(item, gone) if isinstance(item, dict) else item for item in present]
    if not _holds_any(left):
        raise PlanError(
            "Job.parameters returns only biases that this removes",
            where="conv_bn_bias",
            fix="remove this choice from the plan",
        )
    return left


def make_optimizers(job: Job, given: list[Any]) -> list[Optimizer]:
    """The job's optimizers for these parameters. Raises JobError when its function returns something else, and
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
    """The job's optimizers for this Setup's model, to be inspected and dropped."""
    return make_optimizers(setup.job, parameters_given(setup.job, setup.model, setup.optimizer.removed))


@contextmanager
def _put_back(model: nn.Module, removed: Mapping[str, nn.Parameter]) -> Iterator[None]:
    owners = [(model.get_submodule(path), name) for path, _, name in (key.rpartition(".") for key in removed)]
    for (owner, name), parameter in zip(owners, removed.values(), strict=True):
        owner.register_parameter(name, parameter)
    try:
        yield
    finally:
        for owner, name in owners:
            owner.register_parameter(name, None)


def _holds_any(items: Iterable[Any]) -> bool:
    return any(item["params"] if isinstance(item, dict) else True for item in items)


def _parameter_of(item: Any) -> Any:
    return item[1] if isinstance(item, tuple) else item


def _without(group: dict[str, Any], gone: Collection[int]) -> dict[str, Any]:
    return {**group, "params": [item for item in group["params"] if id(_parameter_of(item)) not in gone]}


def _with_a_list(item: Any) -> Any:
    """The item; a group is copied with a list of its parameters, which can be read more than once."""
    if not isinstance(item, dict):
        return item
    if "params" not in item:
        raise JobError("parameters", f'gives a group without "params": {describe(item)}', 'write {"params": […], …}')
    params = item["params"]
    return {**item, "params": [params] if isinstance(params, Tensor) else list(params)}
