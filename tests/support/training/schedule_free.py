"""A schedule-free optimizer as schedulefree's own: its parameters hold other weights in training than in evaluation."""

from __future__ import annotations

from typing import Any

import torch


class ScheduleFreeSGD(torch.optim.Optimizer):
    """Source: The Road Less Scheduled, Defazio et al. 2024, arXiv:2405.15682, equations 4 to 6.

    A parameter holds y in training and x in evaluation; the state holds z. Both follow from each other up to rounding.
    It is made in evaluation mode, in which a step is refused.
    """

    def __init__(self, params: Any, lr: float = 0.3, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "train_mode": False})

    @torch.no_grad()
    def eval(self) -> None:
        self._change(False, lambda beta: 1 - 1 / beta)

    @torch.no_grad()
    def train(self) -> None:
        self._change(True, lambda beta: 1 - beta)

    def _change(self, train_mode: bool, weight: Any) -> None:
        for group in self.param_groups:
            if group["train_mode"] != train_mode:
                for each in group["params"]:
                    if "z" in self.state[each]:
                        each.lerp_(self.state[each]["z"].to(each.dtype), weight(group["beta"]))
                group["train_mode"] = train_mode

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("the optimizer is not in train mode")
            group["k"] += 1
            share = 1 / group["k"]
            for each in group["params"]:
                if each.grad is None:
                    continue
                z = self.state[each].setdefault("z", each.clone())
                each.lerp_(z, share)
                each.add_(each.grad, alpha=group["lr"] * (group["beta"] * (1 - share) - 1))
                z.sub_(each.grad, alpha=group["lr"])
