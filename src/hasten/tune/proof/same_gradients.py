"""Whether a plan's gradients are the baseline's to the last bit: then no float64 reference has to judge them.

A choice that changes only the update, or the evaluation, has the baseline's very gradients from the same weights. So
three steps of either arm are enough, and only the updates are judged, as gradient_check.py does. Where one bit differs,
nothing is said, and the plan is judged beside references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hasten.measure.gradient_error import UpdateError, judge_updates
from hasten.training.weights.tensor_file import read_tensors, write_tensors
from hasten.tune.proof.gradient_check import UPDATES, include, part_of, strided
from hasten.tune.proof.optimizer_steps import OptimizerSteps, Tensors, put_state, state_of
from hasten.tune.trials.trial import Trial


def keep_gradients(trial: Trial, folder: str) -> dict[str, Any]:
    """A request to an arm with the empty plan: fill the folder with its first steps' weights and gradients. The arm
    cannot be used for anything else afterwards.

    steps: how many, norms, rates: of every step, see OptimizerStep; updates: parameter name -> UpdateError.
    """
    state, norms, rates, updates = dict[str, torch.Tensor](), list[Any](), list[Any](), dict[str, UpdateError]()

    def before(position: int, batch: Any) -> None:
        state.update({f"state/{name}": each.clone() for name, each in state_of(trial.run).items()})

    for position, seen in enumerate(OptimizerSteps(trial.run).steps(before)):
        gradients = {f"plain/{name}": strided(each).cpu() for name, each in seen.gradients.items()}
        write_tensors(_file(folder, position), {**state, **gradients})
        norms.append(seen.norm)
        rates.append(seen.rates)
        include(updates, seen.updates(seen.rates))
        if len(norms) == UPDATES:
            break
    sums = {name: asdict(each) for name, each in updates.items()}
    return {"steps": len(norms), "norms": norms, "rates": rates, "updates": sums}


def compare_gradients(trial: Trial, folder: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    """A request to the arm of a plan that has taken no step. kept: what keep_gradients answered. The arm cannot be
    used for anything else afterwards.

    same: whether all weights it began with, gradients and norms are the baseline's to the bit; passes, gradient_error,
    bound, reason: of the updates.
    """
    run, updates, steps, same = trial.run, dict[str, UpdateError](), 0, True
    step: Tensors = {}

    def before(position: int, batch: Any) -> None:
        nonlocal step, same
        step = read_tensors(_file(folder, position))
        state, present = part_of(step, "state"), state_of(run)
        same &= present.keys() == state.keys()
        same &= position > 0 or all(torch.equal(each.cpu(), state[name]) for name, each in present.items())
        put_state(run, state)

    for seen in OptimizerSteps(run).steps(before):
        same &= _same_bits(seen.gradients, part_of(step, "plain")) and seen.norm == kept["norms"][steps]
        include(updates, seen.updates(kept["rates"][steps]))
        steps += 1
        if steps == kept["steps"] or not same:
            break
    if not same or not steps or steps < kept["steps"]:
        return {"same": False, "passes": False}
    plain = {name: UpdateError(**each) for name, each in kept["updates"].items()}
    verdict = judge_updates(plain, updates)
    reason = f"the gradients of {steps} steps are equal to the last bit, and {verdict}"
    return {
        "same": True,
        "passes": verdict.passes,
        "gradient_error": verdict.multiple,
        "bound": verdict.bound,
        "reason": reason,
    }


def _same_bits(plan: Tensors, plain: Tensors) -> bool:
    return plan.keys() == plain.keys() and all(
        torch.equal(strided(plan[name]).cpu(), each) for name, each in plain.items()
    )


def _file(folder: str, position: int) -> Path:
    return Path(folder) / f"same-{position}.safetensors"
