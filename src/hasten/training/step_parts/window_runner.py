"""Microbatches through the step, window by window: seeded by the step's number, and restored when a window fails."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hasten.data.order.randomness import seed_step
from hasten.errors import RAISED, HastenError, NonFinite
from hasten.training.batches.training_data import TrainingData
from hasten.training.failures.torch_errors import TorchErrors
from hasten.training.failures.user_code import AT_A_STEP
from hasten.training.state.declared_state import DeclaredState
from hasten.training.state.undeclared_state import UndeclaredState
from hasten.training.state.window_snapshot import WindowSnapshot
from hasten.training.step import Step


class StepRollback:
    """Restores buffers, declared state and the position in the data: see skips.Rollback. snapshot: None until a run
    wants to be restored; then steps that were refused leave buffers and declared state as they were found."""

    def __init__(self, batches: TrainingData) -> None:
        self._batches = batches
        self.snapshot: WindowSnapshot | None = None

    def take_snapshots(self, model: nn.Module, declared: DeclaredState, *, deferred: bool) -> None:
        """From now on store how each window began. deferred: whether an update is judged during the next window."""
        if self.snapshot is None:
            self.snapshot = WindowSnapshot(model, declared, windows=2 if deferred else 1)

    def skipped(self, step: int) -> None:
        """What overflowed in a forward pass must not stay in batch norm's statistics."""
        if self.snapshot is not None:
            self.snapshot.heal(step)

    def refused(self, step: int) -> str:
        samples = self._batches.describe(step)
        if self.snapshot is not None:
            self.snapshot.back(step)
        self._batches.position.go_back_to(step)
        self._batches.present = self._batches.present._replace(last=True)
        return samples


class WindowRunner:
    """take() each microbatch that TrainingData has handed out."""

    def __init__(
        self,
        step: Step,
        batches: TrainingData,
        rollback: StepRollback,
        undeclared: UndeclaredState,
        explain: TorchErrors,
        *,
        seed: int,
        rank: int,
        device: torch.device,
    ) -> None:
        """seed, rank: which, with a step's number, seed torch's default generators."""
        self._step, self._batches, self._rollback = step, batches, rollback
        self._undeclared, self._explain = undeclared, explain
        self._seed, self._rank, self._device = seed, rank, device
        self._is_between, self._is_restored, self._seen_before = True, True, 0

    def start_pass(self) -> None:
        """Reading starts anew: an open window is abandoned."""
        self._step.abandon_window()
        self._is_between = True

    def take(self, batch: Any) -> Tensor:
        """Forward and backward, and the update after a window's last microbatch; the mean loss, detached."""
        batches, step = self._batches, self._step
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
                if not self._undeclared.is_done:
                    self._undeclared.check()
        except NonFinite:  # the rollback has restored the step
            self._is_between = True
            raise
        except HastenError:
            raise
        except RAISED as error:
            refusal = self._explain(error, batches.present.samples, is_updating=step.is_updating)
            if refusal is not None:
                raise refusal from error
            number = step.skips.attempted + 1
            error.add_note(f"{AT_A_STEP}{number}: {batches.describe(number)}; seed {self._seed}")
            raise
        return loss

    def _begin(self, step: int) -> None:
        self._seen_before = self._batches.samples_seen
        seed_step(self._seed, self._rank, step, self._device)
        if self._rollback.snapshot is not None:
            self._rollback.snapshot.mark(step)

    def restore(self) -> bool:
        """After an exception in a window: everything is as the last completed step left it. False where it cannot be:
        the exception came while parameters changed, a large buffer was written for the first time, or no snapshots are
        taken."""
        snapshot = self._rollback.snapshot
        if snapshot is None or self._step.is_updating:
            return False
        self._step.abandon_window()
        if not self._is_between:
            self._is_restored = snapshot.back(self._step.skips.attempted + 1)
            self._is_between = True
            self._batches.present = self._batches.present._replace(last=True)
            self._batches.samples_seen = self._seen_before
        return self._is_restored
