"""Which evaluation was the best; when to stop early, with patience counted in evaluations, whatever their distance in
steps or epochs; and the end at a target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hasten.errors import JobError, NonFinite
from hasten.facts.job import Best, EarlyStopping
from hasten.techniques.setup import Target


class BestResult:
    """The best value of one result, and the step of its evaluation. `value` is NaN until the first evaluation."""

    def __init__(self, rule: Best | EarlyStopping, metrics: Mapping[str, Any]) -> None:
        self._metric, self._field = rule.metric, _field(rule)
        self._least = rule.min_delta if isinstance(rule, EarlyStopping) else 0.0
        self._rises = higher_is_better(rule, metrics)
        self.value, self.step = math.nan, 0

    def observe(self, results: Mapping[str, float], step: int) -> bool:
        """Take in an evaluation; True when it is the best so far. Raises NonFinite for NaN."""
        value = results[self._metric]
        if math.isnan(value):
            raise NonFinite(
                f"{self._metric!r} is NaN, so no evaluation can be called the best",
                where=f"evaluation at step {step}",
                fix=f"correct the metric or the model, or watch another result in Job.{self._field}",
            )
        gain = value - self.value if self._rises else self.value - value
        if not math.isnan(self.value) and not gain > self._least:
            return False
        self.value, self.step = value, step
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value, self.step = state["value"], state["step"]


class Stopping:
    """Counts the evaluations in a row that were not the best so far."""

    def __init__(self, rule: EarlyStopping, metrics: Mapping[str, Any]) -> None:
        self._patience, self.best = rule.patience, BestResult(rule, metrics)
        self._without_improvement = 0

    @property
    def over(self) -> bool:
        """Whether the run ends."""
        return self._without_improvement >= self._patience

    def observe(self, results: Mapping[str, float], step: int) -> bool:
        """Take in an evaluation; True when it is the best so far. Raises NonFinite for NaN."""
        is_best = self.best.observe(results, step)
        self._without_improvement = 0 if is_best else self._without_improvement + 1
        return is_best

    def state_dict(self) -> dict[str, Any]:
        best = self.best
        return {"best": best.value, "best_step": best.step, "without_improvement": self._without_improvement}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best.load_state_dict({"value": state["best"], "step": state["best_step"]})
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


def higher_is_better(rule: Best | EarlyStopping, metrics: Mapping[str, Any]) -> bool:
    """Which way the watched result improves. Raises JobError when nothing says so."""
    if rule.mode is not None:
        return rule.mode == "max"
    if rule.metric == "loss":
        return False
    higher = getattr(metrics[rule.metric], "higher_is_better", None)
    if higher is None:
        raise JobError(
            _field(rule),
            f"{rule.metric!r} does not say whether higher is better",
            f'write {type(rule).__name__}("{rule.metric}", mode="min") or mode="max"',
        )
    return bool(higher)


def _field(rule: Best | EarlyStopping) -> str:
    return "keep" if isinstance(rule, Best) else "stop"
