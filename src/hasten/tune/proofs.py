"""What a search proves of the choices that won, before a plan is made of them.

Each is put to the proof of its own claim. One that claims bits was compared in its own windows (sameness.py). Those up
to rounding are proven together, as the plan will have them, by one arm's gradients; only where that fails is each asked
alone, for the one that is to blame. Those that leave the statistics alone are trained for a few steps from several
seeds beside the plain job: that shows harm that is plain to see, and says how small a harm it would not have shown. A
loss that falls faster is harm as well: whoever trains something else has lost what the claim promises. `hasten prove
loss` trains to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hasten.facts.choice import Choice, Preserves
from hasten.facts.trials import Curves, Doing, Proven
from hasten.tune.arms import Arms
from hasten.tune.candidates import plan_of
from hasten.tune.fate import ArmFailed
from hasten.tune.loss_proof import paired_curves
from hasten.tune.proof import GradientProver

Tell = Callable[[Doing], None]
SEEDS = 3
FEWEST_STEPS = 5


def prove_rounding(arms: Arms, choices: Sequence[Choice], tell: Tell) -> list[Proven]:
    """One record for each choice that claims to be equal up to rounding."""
    asked = [choice for choice in choices if choice.preserves is Preserves.ROUNDING]
    if not asked:
        return []
    # Bytes of the job's own numbers: a folder that others cannot read, gone with the block.
    with TemporaryDirectory(prefix="hasten-proof-") as folder:
        prover = GradientProver(arms, Path(folder))
        tell(Doing(what=f"proving the gradients of {', '.join(map(str, asked))}"))
        together = prover.prove(plan_of(asked))
        if together.passes or len(asked) == 1:
            return [together.of(choice) for choice in asked]
        return [prover.prove(plan_of([choice])).of(choice) for choice in asked]


def prove_statistics(
    arms: Arms, choices: Sequence[Choice], *, first_seed: int, steps: int, tell: Tell
) -> tuple[Curves | None, list[Proven]]:
    """The curves of the plan, and one record for each choice that claims to leave the statistics as they are.

    Harm is put down to all of them: which one it was takes more pairs than a search has time for.
    """
    asked = [choice for choice in choices if choice.preserves is Preserves.STATISTICS]
    if not asked:
        return None, []
    seeds = range(first_seed, first_seed + SEEDS)

    def watch(done: int, whole: int) -> None:
        tell(Doing(what="comparing losses over three seeds", done=done, whole=whole))

    try:
        curves = paired_curves(arms, plan_of(choices), seeds, max(steps, FEWEST_STEPS), watch)
    except ArmFailed as failed:
        reason = f"its losses could not be compared: {failed.fate.value}: {failed.what}"
        return None, [Proven(choice=choice, passes=False, reason=reason) for choice in asked]
    passes = curves.verdict not in ("harmed", "better")
    return curves, [Proven(choice=choice, passes=passes, reason=curves.sentence) for choice in asked]
