"""The norm of the gradient of a script's first step, in the process of a trial: after its last backward pass, before
anything clips it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from hasten.scripts.patching import replaced
from hasten.scripts.trials.step_clock import StepClock


@dataclass(kw_only=True)
class FirstGradient:
    """norm: of all that the main optimizer trains; None where nothing has called backward."""

    norm: float | None = None
    _resources: ExitStack = field(default_factory=ExitStack)

    def start(self, clock: StepClock) -> None:
        """Before the script starts."""

        def backward(original: Callable[..., None], *args: Any, **named: Any) -> None:
            original(*args, **named)
            if clock.main.optimizer is not None and not clock.main.updates:
                trained = [each.grad for group in clock.main.optimizer.param_groups for each in group["params"]]
                self.norm = math.hypot(*(float(each.norm()) for each in trained if each is not None))

        self._resources.enter_context(replaced(torch.autograd, "backward", backward))
