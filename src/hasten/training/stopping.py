"""When to stop early: patience counted in evaluations, whatever their distance in steps or epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from hasten.errors import JobError, NonFinite
from hasten.facts.job import EarlyStopping

if TYPE_CHECKING:
    from torchmetrics import Metric


class Stopping:
    """Watches one result. `best` is NaN until the first evaluation."""

    def __init__(self, rule: EarlyStopping, metrics: Mapping[str, Metric]) -> None:
        self._rule = rule
        self._mode = _direction(rule, metrics)
        self.best = math.nan
        self.best_step = 0
        self._without_improvement = 0

    @property
    def exhausted(self) -> bool:
        return self._without_improvement >= self._rule.patience

    def observe(self, results: Mapping[str, float], step: int) -> bool:
        """Take in an evaluation; True when it is the best so far. Raises NonFinite for NaN."""
        value = results[self._rule.metric]
        if math.isnan(value):
            raise NonFinite(
                f"{self._rule.metric!r} is NaN, so early stopping cannot judge it",
                where=f"evaluation at step {step}",
                fix="mend the metric or the model, or watch another result in EarlyStopping",
            )
        if self._improves(value):
            self.best, self.best_step, self._without_improvement = value, step, 0
            return True
        self._without_improvement += 1
        return False

    def _improves(self, value: float) -> bool:
        if math.isnan(self.best):
            return True
        gain = self.best - value if self._mode == "min" else value - self.best
        return gain > self._rule.min_delta

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "without_improvement": self._without_improvement}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.best_step = state["best"], state["best_step"]
        self._without_improvement = state["without_improvement"]


def _direction(rule: EarlyStopping, metrics: Mapping[str, Metric]) -> Literal["min", "max"]:
    if rule.mode is not None:
        return rule.mode
    if rule.metric == "loss":
        return "min"
    higher = getattr(metrics[rule.metric], "higher_is_better", None)
    if higher is None:
        raise JobError(
            "stop",
            f"{rule.metric!r} does not say whether higher is better",
            f'write EarlyStopping("{rule.metric}", mode="min") or mode="max"',
        )
    return "max" if higher else "min"
