"""The loss of a script's first step and the norm of its gradient, in the process of a trial: after the last backward
pass before the update, before anything clips the gradient. Of several that an update calls by its closure, after the
first one: between these, it moves the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hasten.scripts.patching import replaced
from hasten.scripts.trials.step_clock import StepClock


@dataclass(kw_only=True)
class FirstStepNumbers:
    """found: see loss_proof.Trained, with the gradient of all that the main optimizer trains; empty where nothing has
    called backward."""

    found: dict[str, float] = field(default_factory=dict[str, float])
    _updates: bool = False  # the first update has begun
    _resources: ExitStack = field(default_factory=ExitStack)

    def start(self, clock: StepClock) -> None:
        """Before the clock starts, which notes a loss before its backward pass is called here."""

        def backward(original: Callable[..., None], *args: Any, **named: Any) -> None:
            original(*args, **named)
            if clock.main.optimizer is None or clock.main.updates or (self._updates and self.found):
                return
            losses = [float(each) for each in clock.losses]
            trained = [each.grad for group in clock.main.optimizer.param_groups for each in group["params"]]
            norms = [_norm(each) for each in trained if each is not None]
            self.found = {"loss": math.fsum(losses) / len(losses), "norm of the gradient": math.hypot(*norms)}

        def begins(optimizer: Optimizer, args: Any, named: Any) -> None:
            self._updates = self._updates or optimizer is clock.main.optimizer

        self._resources.enter_context(replaced(torch.autograd, "backward", backward))
        self._resources.callback(register_optimizer_step_pre_hook(begins).remove)


def _norm(gradient: torch.Tensor) -> float:
    """In float16 it would be infinite beyond 65,504."""
    return float(gradient.to(torch.promote_types(gradient.dtype, torch.float32)).norm())
