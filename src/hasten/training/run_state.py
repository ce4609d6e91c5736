"""All that the next step of a run depends on, as one state; and a run that goes on from one.

Weights, buffers of the model and the loss, parameters that the loss moves, optimizers, the loss scale, the schedule,
averages, early stopping, the position in the data, and every random generator. A state is taken between two optimizer
steps and refers to the run's own tensors: copy it, or write it, before the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from hasten.data.randomness import random_state, set_random_state
from hasten.errors import Misconfigured
from hasten.parallel.replicate import gather_over_ranks
from hasten.training.sharded_run import part_of

if TYPE_CHECKING:
    from hasten.training.run import Run

_IMPLEMENTATION = ("foreach", "fused")  # how an optimizer computes, which is the plan's to say, not the checkpoint's


def state_of(run: Run) -> dict[str, Any]:
    """Raises JobError for a scheduler that cannot give its state."""
    return {
        "model": run.model.state_dict(),
        "buffers": run.built.buffers.state_dict(run.model),
        "loss_parameters": run.built.loss_parameters.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in run.optimizers],
        "step": run._step.state_dict(),
        "schedule": run.schedule.state_dict(),
        "average": run.average.state_dict() if run.average else None,
        "stopping": run.stopping.state_dict() if run.stopping else None,
        "best": (run._best, run._kept_step),
        "ended": run.ending.reached,
        "position": (run.epoch, run._window),
        "microbatch_size": run.microbatch_size,
        "evaluation_batch_size": run.evaluation_batch_size,
        "random": random_state(run.device),
        "generators": run.built.generators.states(),
        "other_ranks": _of_other_ranks(run),
        "replaced": run.loader.ledger.state_dict(),
    }


def _of_other_ranks(run: Run) -> list[dict[str, Any]]:
    """What each of them draws from; all else is the same on all. Waits for them."""
    if not run.ranks.many:
        return []
    own = {"random": random_state(run.device), "generators": run.built.generators.states()}
    return gather_over_ranks([own], run.ranks, run.device)[1:]


def _go_on_drawing(run: Run, state: Mapping[str, Any]) -> None:
    """From where this rank was; where there was none of its number, from what it begins with."""
    saved = [state, *state.get("other_ranks", ())]
    if len(saved) != run.ranks.size:
        told = f"the run was saved by {len(saved)} ranks and goes on with {run.ranks.size}"
        run.notices.append(f"{told}: what layers draw at random, as dropout does, is not what it would have been")
    if run.ranks.rank >= len(saved):
        return
    own = saved[run.ranks.rank]
    run.built.generators.go_on_from(own["generators"])
    run.notices += run.built.generators.told(own["generators"])
    set_random_state(own["random"], run.device)


def load_state(run: Run, state: Mapping[str, Any]) -> None:
    """Raises Misconfigured when the state is that of another model or optimizer, JobError of another schedule."""
    try:
        run.built.buffers.load_state_dict(state["buffers"], run.device)  # first, so that all that follows fits
        present = run.model.state_dict()
        run.model.load_state_dict(
            {key: part_of(saved, present[key]) if key in present else saved for key, saved in state["model"].items()}
        )
        run.built.loss_parameters.load_state_dict(state["loss_parameters"], run.device)
        for optimizer, saved in zip(run.optimizers, state["optimizers"], strict=True):
            _load_optimizer(optimizer, saved)
    except (RuntimeError, ValueError, KeyError) as error:
        what = f"the state that was saved does not fit this job: {' '.join(str(error).split())}"
        raise Misconfigured(what, fix="resume with the model and optimizer that the run began with") from error
    run._step.load_state_dict(state["step"])
    run.schedule.load_state_dict(state["schedule"])
    if run.average is not None:
        run.average.load_state_dict(state["average"])
    if run.stopping is not None:
        run.stopping.load_state_dict(state["stopping"])
    run._best, run._kept_step = state["best"]
    run.ending.reached = state["ended"]
    run.epoch, run._window = state["position"]
    if state["microbatch_size"] != run.microbatch_size:
        run.read_in_microbatches_of(state["microbatch_size"])
    if run.evaluator is not None and state["evaluation_batch_size"] is not None:
        run.evaluator.batch_size = state["evaluation_batch_size"]
    _go_on_drawing(run, state)
    run.loader.ledger.load_state_dict(state["replaced"])


def _load_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    saved = saved | {"state": _in_parts(optimizer, saved)}
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


def _in_parts(optimizer: Optimizer, saved: dict[str, Any]) -> dict[int, Any]:
    """The state by number, with what has the size of its parameter held as that is."""
    parameters = {number: parameter for parameter, number in _numbered(optimizer, saved)}
    return {
        number: {
            key: part_of(value, parameters[number])
            if isinstance(value, Tensor) and value.shape == parameters[number].shape
            else value
            for key, value in values.items()
        }
        for number, values in saved["state"].items()
    }


def _numbered(optimizer: Optimizer, saved: dict[str, Any]) -> list[tuple[Tensor, int]]:
    """Raises ValueError where they are not equally many."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    return [*zip(parameters, numbers, strict=True)]
