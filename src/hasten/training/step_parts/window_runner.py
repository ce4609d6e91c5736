"""Microbatches through the step, window by window: seeded by the step's number, and restored when a window fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hasten.data.order.randomness import seed_step
from hasten.errors import RAISED, HastenError, NonFinite
from hasten.training.batches.training_data import TrainingData
from hasten.training.failures.torch_errors import TorchErrors, optimizer_in
from hasten.training.failures.user_code import AT_A_STEP, IN_THE_JOB
from hasten.training.state.declared_state import UndeclaredState
from hasten.training.state.window_snapshot import StepRollback
from hasten.training.step import Step


@dataclass(kw_only=True, slots=True)
class WindowRunner:
    """take() each microbatch that TrainingData has handed out.

    before_first: what is checked on the first batch, before the first step; None for nothing.
    seed, rank: which, with a step's number, seed torch's default generators.
    """

    step: Step
    batches: TrainingData
    rollback: StepRollback
    undeclared: UndeclaredState
    explain: TorchErrors
    seed: int
    rank: int
    device: torch.device
    before_first: Callable[[Any], None] | None = None
    _is_between: bool = True
    _is_restored: bool = True
    _seen_before: int = 0

    def start_pass(self) -> None:
        """Reading starts again: an open window is abandoned."""
        self.step.abandon_window()
        self._is_between = True

    def take(self, batch: Any) -> Tensor:
        """Forward and backward, and the update after a window's last microbatch; the mean loss, detached."""
        batches, step = self.batches, self.step
        if self.before_first is not None:
            self.before_first(batch)
            self.before_first = None
        if self._is_between:
            self._begin(step.skips.attempted + 1)
        self._is_between, self._is_restored = False, True
        try:
            loss = step.accumulate(batch, batches.counted, batches.present.last)
            batches.samples_seen += batches.present.samples
            if batches.present.last:
                step.update()
                batches.position.window += 1
                self._is_between = True
                if not self.undeclared.is_done:
                    self.undeclared.check()
        except NonFinite:  # the rollback has restored the step
            self._is_between = True
            raise
        except HastenError:
            raise
        except RAISED as error:
            refusal = self.explain(error, batches.present.samples, is_updating=step.is_updating)
            if refusal is not None:
                raise refusal from error
            if step.is_updating:
                error.add_note(f"{IN_THE_JOB}optimizer, in step() of {optimizer_in(error)}")
            number = step.skips.attempted + 1
            error.add_note(f"{AT_A_STEP}{number}: {batches.describe(number)}; seed {self.seed}")
            raise
        return loss

    def _begin(self, step: int) -> None:
        self._seen_before = self.batches.samples_seen
        seed_step(self.seed, self.rank, step, self.device)
        if self.rollback.snapshot is not None:
            self.rollback.snapshot.mark(step)

    def restore(self) -> bool:
        """After an exception in a window: everything is as the last completed step left it. False where it cannot be:
        the exception came while parameters changed, a large buffer was written for the first time, or no snapshots are
        taken."""
        snapshot = self.rollback.snapshot
        if snapshot is None or self.step.is_updating:
            return False
        self.step.abandon_window()
        if not self._is_between:
            self._is_restored = snapshot.back(self.step.skips.attempted + 1)
            self._is_between = True
            self.batches.present = self.batches.present._replace(last=True)
            self.batches.samples_seen = self._seen_before
        return self._is_restored
