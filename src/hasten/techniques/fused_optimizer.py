"""Update all weights in one kernel, or a few, instead of several small ones for each tensor.

What it does: rebuilds the job's optimizer, with the same groups and settings, in one of torch's implementations. The
state and its keys do not change.

  * "fused": one kernel for the whole update of many tensors.
  * "foreach": one kernel for each operation, over many tensors.
  * "for_loop": one kernel for each operation and tensor.

Why it is faster: the update does little arithmetic per byte. A fused update reads and writes weights and state once.
Fewer kernels also save launch time, which dominates with many small tensors.

When it loses: with a few large tensors on a CPU, memory limits every implementation. "foreach" holds temporary tensors
of about the weights' size. On an accelerator torch already uses "foreach" by default.

What it changes: rounding only ("equal up to rounding"), because operations are contracted and ordered differently.

Limits: an optimizer without the implementation (Muon, LBFGS, SparseAdam, most custom ones) does not change; a notice
says so. Hooks on the steps of an optimizer are lost.

Example:

    [[choice]]
    technique = "fused_optimizer"
    value = "fused"
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch.optim import Optimizer

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.job_optimizers import present_optimizers
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

Implementation = Literal["for_loop", "foreach", "fused"]


def with_implementation(optimizer: Optimizer, implementation: Implementation) -> Optimizer:
    """A new optimizer for the same parameters, with the same groups and settings, before its first step."""
    return _rebuilt(optimizer, optimizer.param_groups, implementation)


def refusal(optimizer: Optimizer, implementation: Implementation, device: torch.device) -> str | None:
    """Why this optimizer cannot have the implementation for weights on the device; None when it can.

    Which classes have which kernels on which devices differs between versions of torch. So it is tried with one update
    of a single number for each dtype of each group.
    """
    name = type(optimizer).__name__
    if ("fused" if implementation == "fused" else "foreach") not in inspect.signature(type(optimizer)).parameters:
        return f"{name} has no {implementation} implementation"
    try:
        groups = [{**group, "params": _small_weights(group["params"], device)} for group in optimizer.param_groups]
        _rebuilt(optimizer, groups, implementation).step()
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return f"{name} cannot be {implementation} here: {str(error).partition(chr(10))[0]}"
    return None


def refusals(optimizers: Sequence[Optimizer], implementation: Implementation, device: torch.device) -> list[str | None]:
    """The refusal of each optimizer. Raises PlanError when none of them can have the implementation."""
    reasons = [refusal(optimizer, implementation, device) for optimizer in optimizers]
    if all(reasons):
        raise PlanError(str(reasons[0]), where="fused_optimizer", fix="remove this choice from the plan")
    return reasons


def applies(setup: Setup) -> Yes | No:
    if candidates(setup):
        return Yes()
    optimizers = present_optimizers(setup)
    reasons = (refusal(optimizer, "fused", setup.device) for optimizer in optimizers)
    return No(next((reason for reason in reasons if reason), "the optimizer is already fused"))


def candidates(setup: Setup) -> Sequence[Choice]:
    optimizers = present_optimizers(setup)
    if all(_present(optimizer, setup.device) == "fused" for optimizer in optimizers):
        return []
    return [
        Choice(technique="fused_optimizer", value=value, preserves=Preserves.ROUNDING)
        for value in ("fused", "foreach")
        if any(
            _present(optimizer, setup.device) != value and refusal(optimizer, value, setup.device) is None
            for optimizer in optimizers
        )
    ]


def apply(setup: Setup, choice: Choice) -> None:
    value: Any = choice.value
    if value not in get_args(Implementation):
        known = ", ".join(f'"{name}"' for name in get_args(Implementation))
        raise PlanError(f"is {value!r}", where="fused_optimizer", fix=f"write one of {known}")
    reasons = refusals(present_optimizers(setup), value, setup.device)
    setup.optimizer.implementation = value
    setup.notices += [f"{reason}; this optimizer keeps its own form" for reason in reasons if reason]


def _present(optimizer: Optimizer, device: torch.device) -> Implementation:
    defaults = optimizer.defaults
    if defaults.get("fused"):
        return "fused"
    torch_decides = defaults.get("foreach", False) is None and defaults.get("fused") is None
    return "foreach" if defaults.get("foreach") or (torch_decides and device.type == "cuda") else "for_loop"


def _rebuilt(optimizer: Optimizer, groups: Sequence[dict[str, Any]], implementation: Implementation) -> Optimizer:
    accepted = inspect.signature(type(optimizer)).parameters
    flags = {name: implementation == name for name in ("fused", "foreach")}
    settings = {**optimizer.defaults, **flags}
    bare = [{key: value for key, value in group.items() if key not in flags} for group in groups]
    return type(optimizer)(bare, **{name: value for name, value in settings.items() if name in accepted})


def _small_weights(parameters: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """One number of each dtype among the parameters, with as many dimensions and with a gradient."""
    first = {parameter.dtype: parameter for parameter in reversed(parameters)}
    weights = [torch.zeros([1] * each.dim(), dtype=each.dtype, device=device) for each in first.values()]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    return weights


TECHNIQUE = Technique(
    name="fused_optimizer",
    stage=Stage.OPTIMIZER,
    treats=Symptom.SLOW_OPTIMIZER,
    values='"fused", "foreach" or "for_loop"',
    costs=("foreach holds temporary tensors of about the size of the weights",),
    source="https://docs.pytorch.org/docs/stable/optim.html",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
