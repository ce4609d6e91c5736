"""All that the next step of a run depends on, as one state; and a run that goes on from one.

The model's state_dict(), declared state, optimizers, the loss scale, the schedule, averages, early stopping, the
position in the data, and the global random generators. A state is taken between two optimizer
steps and refers to the run's own tensors: copy it, or write it, before the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hasten.checkpoint.sharded.rank_files import Pieced, assembled
from hasten.data.order.randomness import random_state, set_random_state
from hasten.errors import Misconfigured
from hasten.parallel.replicate.replicated import gather_over_ranks
from hasten.training.over_ranks import check_replicas, marked, own_part, parts_of, settle_buffers
from hasten.training.schedule.group_values import as_stored
from hasten.training.state.forms import have_same_form
from hasten.training.state.made_buffers import make_buffers
from hasten.training.state.window_snapshot import SMALL_BYTES

if TYPE_CHECKING:
    from hasten.parallel.tensor.tensor_sharding import Divided
    from hasten.training.run import Run

_IMPLEMENTATION = ("foreach", "fused")  # how an optimizer computes, which is the plan's to say, not the checkpoint's


def state_of(run: Run) -> dict[str, Any]:
    """Raises JobError for a scheduler that cannot give its state, and for replicas that hold other weights. Ranks take
    it together."""
    check_replicas(run)
    if run.pipeline is not None:
        settle_buffers(run)
    return {
        "model": marked(run, run.model.state_dict()),
        "unsaved_buffers": _unsaved_buffers(run.model),
        "declared": run.built.declared.state_dict(),
        "optimizers": [_optimizer_state(run, optimizer) for optimizer in run.optimizers],
        "step": run._step.state_dict(),
        "schedule": run.schedule.state_dict(),
        "average": run.average.state_dict(partial(marked, run)) if run.average else None,
        "stopping": run.stopping.state_dict() if run.stopping else None,
        "best": (run._best, run._kept_step),
        "ended": run.ending.reached,
        "position": (run.epoch, run._window),
        "microbatch_size": run.microbatch_size,
        "evaluation_batch_size": run.evaluation_batch_size,
        "random": random_state(run.device),
        "low_rank": _low_rank(run),
        "together": run.grid.together,
        "stages": _stages(run),
        "other_ranks": _of_other_ranks(run),
        "replaced": run.loader.ledger.state_dict(),
    }


def _unsaved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Small buffers that the model's state_dict() leaves out (persistent=False), as a counter: a step may change them.
    Large ones are tables that the model computes."""
    saved = model.state_dict(keep_vars=True)
    return {
        name: each
        for name, each in model.named_buffers()
        if name not in saved and each.layout is torch.strided and each.nbytes <= SMALL_BYTES
    }


def _load_unsaved_buffers(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """One that this model does not have yet, or has in another form, is computed by the model again."""
    present = dict(model.named_buffers())
    with torch.no_grad():
        for name, each in saved.items():
            if name in present and have_same_form(present[name], each):
                present[name].copy_(each)


def _of_other_ranks(run: Run) -> list[dict[str, Any]]:
    """What each of them draws from, and holds back of its gradients; all else is the same on all. Waits for them."""
    if not run.ranks.many:
        return []
    own = {"random": random_state(run.device), "low_rank": _low_rank(run)}
    return gather_over_ranks([own], run.ranks, run.device)[1:]


def _low_rank(run: Run) -> dict[str, Any] | None:
    return None if run.replica is None or run.replica.low_rank is None else run.replica.low_rank.state_dict()


def _stages(run: Run) -> list[str] | None:
    return None if run.pipeline is None else [*run.pipeline.parts.begins]


def _cut(begins: Sequence[str] | None) -> str:
    return "in no stages" if begins is None else f"in stages that begin with {', '.join(begins)}"


def _go_on_as_rank(run: Run, state: Mapping[str, Any]) -> None:
    """Drawing from where this rank was; where there was none of its number, from what it begins with. Those that begin
    to hold one model together draw alike, so each goes on from the first of them."""
    saved, together = [state, *state.get("other_ranks", ())], state.get("together", 1)
    data, before, now = run.grid.data, state.get("stages"), _stages(run)
    alike = (len(saved), together) == (run.ranks.size, run.grid.together)
    if alike and before != now:
        told = f"the run was saved {_cut(before)} and goes on {_cut(now)}"
        run.notices.append(f"{told}: what layers draw at random is not what it would have been")
    if len(saved) != together * data.size:
        told = f"the run was saved by {len(saved)} ranks and goes on with {run.ranks.size}"
        run.notices.append(f"{told}: what layers draw at random, as dropout does, is not what it would have been")
    number = run.ranks.rank if alike and before == now else data.rank * together
    if number >= len(saved):
        return
    own = saved[number]
    set_random_state(own["random"], run.device)
    if run.replica is not None and run.replica.low_rank is not None:
        run.notices += run.replica.low_rank.go_on(own.get("low_rank") if alike else None, run.device)


def load_state(run: Run, state: Mapping[str, Any]) -> None:
    """Raises Misconfigured when the state is that of another model or optimizer, JobError of another schedule."""
    try:
        make_buffers(run.model, state["model"])
        present = run.model.state_dict()
        run.model.load_state_dict(
            {
                key: own_part(run, key, saved, present[key]) if key in present else saved
                for key, saved in state["model"].items()
            }
        )
        _load_unsaved_buffers(run.model, state["unsaved_buffers"])
        run.built.declared.load_state_dict(state["declared"])
        for optimizer, saved in zip(run.optimizers, state["optimizers"], strict=True):
            _load_optimizer(run, optimizer, saved)
    except (RuntimeError, ValueError, KeyError) as error:
        what = f"the state that was saved does not fit this job: {' '.join(str(error).split())}"
        raise Misconfigured(what, fix="resume with the model and optimizer that the run began with") from error
    run._step.load_state_dict(state["step"])
    run.schedule.load_state_dict(state["schedule"])
    if run.average is not None:
        run.average.load_state_dict(state["average"], partial(own_part, run))
    if run.stopping is not None:
        run.stopping.load_state_dict(state["stopping"])
    run._best, run._kept_step = state["best"]
    run.ending.reached = state["ended"]
    run.epoch, run._window = state["position"]
    if state["microbatch_size"] != run.microbatch_size:
        run.read_in_microbatches_of(state["microbatch_size"])
    if run.evaluator is not None and state["evaluation_batch_size"] is not None:
        run.evaluator.batch_size = state["evaluation_batch_size"]
    _go_on_as_rank(run, state)
    run.loader.ledger.load_state_dict(state["replaced"])


def _optimizer_state(run: Run, optimizer: Optimizer) -> dict[str, Any]:
    """With a mark on what is of a parameter's own size, where this rank holds a share of that."""
    saved, named = optimizer.state_dict(), _names(run)
    saved["param_groups"] = [{key: as_stored(each) for key, each in group.items()} for group in saved["param_groups"]]
    if parts_of(run) is None:
        return saved
    numbered = _numbered(optimizer, saved)
    names = {number: named.get(id(parameter), "") for parameter, number in numbered}
    state = saved["state"]
    if run.divided is not None:
        mark = partial(_with_mark, run.divided, optimizer)
        state = {
            number: {key: mark(names[number], parameter, each) for key, each in state[number].items()}
            for parameter, number in numbered
            if number in state
        }
    if run.pipeline is not None:
        state = run.pipeline.owners.everywhere(state, names, run.device)
    return saved | {"state": state}


def _with_mark(divided: Divided, optimizer: Optimizer, name: str, parameter: Tensor, value: Any) -> Any:
    """Of a parameter."""
    if not isinstance(value, Tensor) or value.dim() == 0 or name not in divided.splits:
        return value
    if value.shape != parameter.shape:
        what = f"{type(optimizer).__name__} keeps a state of {name} of another shape than its own"
        fix = "take an optimizer that moves each element by itself, or leave `tensor` out of the plan"
        raise Misconfigured(f"{what}, which is divided", where="tensor", fix=fix)
    return divided.mark(name, value)


def _names(run: Run) -> dict[int, str]:
    return {id(parameter): name for name, parameter in run.model.named_parameters()}


def _load_optimizer(run: Run, optimizer: Optimizer, saved: dict[str, Any]) -> None:
    saved = saved | {"state": _in_parts(run, optimizer, saved)}
    computes = [{key: group[key] for key in _IMPLEMENTATION if key in group} for group in optimizer.param_groups]
    optimizer.load_state_dict(saved)
    for group, own in zip(optimizer.param_groups, computes, strict=True):
        group.update(own)
    # torch turns every tensor of a parameter's state into the parameter's type; an optimizer may have chosen another.
    for parameter, number in _numbered(optimizer, saved):
        for key, value in saved["state"].get(number, {}).items():
            present = optimizer.state[parameter][key]
            if isinstance(value, Tensor) and isinstance(present, Tensor) and present.dtype != value.dtype:
                optimizer.state[parameter][key] = value.to(present.device, copy=True)


def _in_parts(run: Run, optimizer: Optimizer, saved: dict[str, Any]) -> dict[int, Any]:
    """The state by number, with what has the size of its parameter held as that is."""
    parameters, names = {number: parameter for parameter, number in _numbered(optimizer, saved)}, _names(run)

    def held(value: Any, parameter: Tensor) -> Any:
        if not isinstance(value, Tensor | Pieced) or len(value.shape) != parameter.dim() or not parameter.dim():
            return assembled(value)
        own = own_part(run, names.get(id(parameter), ""), value, parameter)
        return own if own.shape == parameter.shape else assembled(value)

    return {
        number: {key: held(value, parameters[number]) for key, value in values.items()}
        for number, values in saved["state"].items()
        if run.pipeline is None or run.pipeline.owners.has(names.get(id(parameters[number]), ""))
    }


def _numbered(optimizer: Optimizer, saved: dict[str, Any]) -> list[tuple[Tensor, int]]:
    """Raises ValueError where they are not equally many."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    return [*zip(parameters, numbers, strict=True)]
