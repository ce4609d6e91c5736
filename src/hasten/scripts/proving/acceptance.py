"""Whether the edited script, run plainly by Python, does what it did in its trial: then a patch is written.

A trial runs in a process that hasten has prepared: torch is loaded before the script, random numbers begin from a seed,
and hooks stand around each step. The patched file has none of that, so it is run without, in a copy of the user's
folder, for a few steps (plain_run.py). Their losses must be those of the trial to the bit, and a step must not take
longer. Long steps are timed while their losses are compared, short ones after that.

The losses of a script that seeds nothing differ in every run. It is run a second time from the trial's seed, which the
answer says. Where even two trials differ, as kernels on a GPU can, the losses must be no further from the trial's than
a second trial's are.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from hasten.checkpoint.files import remove_folder
from hasten.facts.formatting import three_digits
from hasten.facts.plan import Plan
from hasten.facts.scripts.seen import Seen
from hasten.facts.trials import Doing
from hasten.scripts.edits.patch import PatchedFile
from hasten.scripts.running.program import Program
from hasten.scripts.techniques import filling_steps
from hasten.scripts.trials.plain_ranks import PlainRanks
from hasten.scripts.trials.plain_run import PlainRun, PlainSteps
from hasten.scripts.trials.scratch import scratch_copy
from hasten.tuning.proof.answers import LIMIT_SECONDS
from hasten.tuning.proof.bits_proof import STEPS_OF_AN_EPOCH, first_difference
from hasten.tuning.search.expected_seconds import TIMED_SECONDS
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.trial_outcome import ArmFailed

STEPS = STEPS_OF_AN_EPOCH  # whose losses are compared
MOST_TIMED = 100  # steps
FEWEST_TIMED = 4  # of those whose losses are compared
SLOWER = 1.1  # from which ratio on a step is slower
ROUNDS = 3  # in all of which it must be slower
FURTHER = 2.0  # than a second trial, as a ratio of the largest differences


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """reason: a sentence without its subject, which is the patched file, run plainly."""

    passes: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """losses: of the first steps, each the mean of its backward passes. usual_seconds: of a step; None where too few
    were timed. timed: so many steps after those, 0 where they were long enough themselves."""

    losses: Sequence[float]
    usual_seconds: float | None
    timed: int = 0
    failed: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchedScript:
    """plan: that the patch makes true. place: where temporary folders may be made."""

    program: Program
    seen: Seen
    plan: Plan
    files: Sequence[PatchedFile]
    place: Path

    def accepted(self, arms: Arms, report: Callable[[Doing], None]) -> Acceptance:
        report(Doing(what="running the patched file plainly: the same losses, and no slower?"))
        try:
            trial = self._in_trial(arms)
            plain = self._plainly(trial, is_seeded=False)
            answer = self._judged(arms, trial, plain)
            rounds = 1
            while answer.passes and _is_slower(trial, plain) and rounds < ROUNDS:
                trial = self._in_trial(arms)
                plain = self._plainly(trial, is_seeded=False)
                rounds += 1
        except ArmFailed as failed:
            return Acceptance(passes=False, reason=f"could not be compared, as its trial failed: {failed.reason}")
        if answer.passes and _is_slower(trial, plain):
            took = f"takes {_shown(plain.usual_seconds)} a step, and {_shown(trial.usual_seconds)} in its trial"
            return Acceptance(passes=False, reason=took)
        return replace(answer, reason=f"{answer.reason}{_at(plain, trial)}") if answer.passes else answer

    def _judged(self, arms: Arms, trial: Steps, plain: Steps) -> Acceptance:
        """By the losses."""
        if plain.failed:
            return Acceptance(passes=False, reason=f"fails: {plain.failed}")
        if not plain.losses:
            return Acceptance(passes=False, reason="ends without a step")
        count = min(len(trial.losses), len(plain.losses))
        has = f"has the losses of its trial to the last bit, in {count} steps"
        apart = first_difference(trial.losses, plain.losses)
        if apart is None:
            return Acceptance(passes=True, reason=has)
        if math.isnan(trial.losses[apart]):
            return Acceptance(passes=False, reason=f"has no loss to compare in step {apart + 1}")
        seeded = self._plainly(trial, is_seeded=True)
        if not seeded.failed and seeded.losses and first_difference(trial.losses, seeded.losses) is None:
            from_seed = "both from the same seed, as the script does not seed all its random numbers"
            return Acceptance(passes=True, reason=f"{has}, {from_seed}")
        again = self._in_trial(arms)
        least = min(_distance(trial.losses, each.losses) for each in (plain, seeded))
        usual = _distance(trial.losses, again.losses)
        if 0 < usual < math.inf and least <= FURTHER * usual:
            differ = f"has losses that differ from its trial's as those of two trials do, in {count} steps"
            return Acceptance(passes=True, reason=differ)
        other = f"{plain.losses[apart]!r}, and {trial.losses[apart]!r} in its trial"
        return Acceptance(passes=False, reason=f"has another loss in step {apart + 1}: {other}")

    @property
    def _filling_steps(self) -> int:
        return filling_steps(self.plan, self.seen)

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _in_trial(self, arms: Arms) -> Steps:
        """Raises ArmFailed."""
        with arms.start("planned", self.plan) as arm:
            asked = {"seed": 0, "steps": STEPS, "metric": None, "seconds": LIMIT_SECONDS}
            trained = arm.ask("train", LIMIT_SECONDS, **asked)
            losses, seconds = trained["losses"], trained["intervals"]
            is_timed = len(seconds) >= FEWEST_TIMED and math.fsum(seconds) >= TIMED_SECONDS
            if is_timed and not self._filling_steps:
                return Steps(losses=losses, usual_seconds=median(seconds))
            arm.window(1)  # begins with the script's first step
            few = arm.window(2)
            timed = min(max(math.ceil(TIMED_SECONDS * few.steps / few.seconds), STEPS), MOST_TIMED)
            usual_seconds = arm.ask("window", steps=timed)["usual_seconds"]
            return Steps(losses=losses, usual_seconds=usual_seconds, timed=timed)

    def _plainly(self, trial: Steps, *, is_seeded: bool) -> Steps:
        """As many steps as the trial has taken, as far as the script has them."""
        before, fewest = (max(STEPS, self._filling_steps), STEPS) if trial.timed else (1, FEWEST_TIMED)
        timed = trial.timed or STEPS - before
        folder = Path(tempfile.mkdtemp(prefix="trial-", dir=self.place))
        try:
            found = self._run(folder, before + timed, before, is_seeded=is_seeded)
        finally:
            remove_folder(folder)
        seconds = [after - before for before, after in pairwise(found.times)][before - 1 :]
        losses = [math.fsum(each) / len(each) if each else math.nan for each in found.losses[:STEPS]]
        usual_of = median if self.seen.model.device == "cpu" else fmean  # ahead of a device, only sums are true
        usual = usual_of(seconds) if len(seconds) >= fewest else None
        return Steps(losses=losses, usual_seconds=usual, failed=found.failed)

    def _run(self, folder: Path, updates: int, untimed: int, *, is_seeded: bool) -> PlainSteps:
        scratch = scratch_copy(self.program, Path.cwd(), folder / "copy", self.seen.prepared)
        for each in self.files:
            scratch.edit(str(each.path), each.after)
        asked = PlainRun(
            roots={str(users): str(copy) for users, copy in scratch.roots.items()},
            place=str(scratch.place),
            folder=str(scratch.folder),
            prepared=scratch.prepared,
            words=scratch.program.words,
            main=self.seen.main,
            updates=updates,
            untimed=untimed,
            is_seeded=is_seeded,
            answer="",
            parent=os.getpid(),
        )
        with PlainRanks(asked, folder) as ranks:
            return ranks.steps(LIMIT_SECONDS)


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest of all steps; infinite where a loss is NaN."""
    distances = [abs(a - b) for a, b in zip(one, other, strict=False)]
    return math.inf if any(map(math.isnan, distances)) else max(distances, default=math.inf)


def _is_slower(trial: Steps, plain: Steps) -> bool:
    if trial.usual_seconds is None or plain.usual_seconds is None:
        return False
    return plain.usual_seconds > SLOWER * trial.usual_seconds


def _at(plain: Steps, trial: Steps) -> str:
    if plain.usual_seconds is None or trial.usual_seconds is None:
        return "; it has too few steps to judge its speed"
    is_within = plain.usual_seconds > trial.usual_seconds
    as_fast = f"within {SLOWER - 1:.0%} of" if is_within else "no slower than in"
    return f"; a step takes {_shown(plain.usual_seconds)}, {as_fast} its trial ({_shown(trial.usual_seconds)})"


def _shown(seconds: float | None) -> str:
    return f"{three_digits(1000 * seconds)} ms" if seconds is not None else "?"
