"""When to stop early: patience counted in evaluations, whatever their distance in steps or epochs; and at a target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hasten.errors import JobError, NonFinite
from hasten.facts.job import EarlyStopping
from hasten.techniques.setup import Target

if TYPE_CHECKING:
    from torchmetrics import Metric


class Stopping:
    """Watches one result. `best` is NaN until the first evaluation."""

    def __init__(self, rule: EarlyStopping, metrics: Mapping[str, Metric]) -> None:
        self._rule = rule
        self._rises = higher_is_better(rule, metrics)
        self.best = math.nan
        self.best_step = 0
        self._without_improvement = 0

    @property
    def over(self) -> bool:
        """Whether the run ends."""
        return self._without_improvement >= self._rule.patience

    def observe(self, results: Mapping[str, float], step: int) -> bool:
        """Take in an evaluation; True when it is the best so far. Raises NonFinite for NaN."""
        value = results[self._rule.metric]
        if math.isnan(value):
            raise NonFinite(
                f"{self._rule.metric!r} is NaN, so early stopping cannot judge it",
                where=f"evaluation at step {step}",
                fix="correct the metric or the model, or watch another result in EarlyStopping",
            )
        if self._improves(value):
            self.best, self.best_step, self._without_improvement = value, step, 0
            return True
        self._without_improvement += 1
        return False

    def _improves(self, value: float) -> bool:
        if math.isnan(self.best):
            return True
        gain = value - self.best if self._rises else self.best - value
        return gain > self._rule.min_delta

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "without_improvement": self._without_improvement}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.best_step = state["best"], state["best_step"]
        self._without_improvement = state["without_improvement"]


class Ending:
    """The target that a plan has set. over: whether it was reached, which ends the run."""

    def __init__(self, target: Target) -> None:
        self._target, self.over = target, False

    def observe(self, results: Mapping[str, float], step: int) -> bool:
        """Take in an evaluation; True for the first one that reaches the target. NaN reaches none."""
        if self.over:
            return False
        value, target = results[self._target.metric], self._target
        self.over = at_least_as_good(value, target.value, higher_is_better=target.higher_is_better)
        return self.over

    def state_dict(self) -> dict[str, Any]:
        return {"reached": self.over}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.over = state["reached"]


def at_least_as_good(value: float, target: float, *, higher_is_better: bool) -> bool:
    return value >= target if higher_is_better else value <= target


def higher_is_better(rule: EarlyStopping, metrics: Mapping[str, Metric]) -> bool:
    """Which way the watched result improves. Raises JobError when nothing says so."""
    if rule.mode is not None:
        return rule.mode == "max"
    if rule.metric == "loss":
        return False
    higher = getattr(metrics[rule.metric], "higher_is_better", None)
    if higher is None:
        raise JobError(
            "stop",
            f"{rule.metric!r} does not say whether higher is better",
            f'write EarlyStopping("{rule.metric}", mode="min") or mode="max"',
        )
    return bool(higher)
