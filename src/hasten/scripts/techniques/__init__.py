"""Techniques that edit a script's own source, and that a job does not need: one a file, those of the doctor's fixes in
one, and the list of all."""

import math

from hasten.facts.plan import Plan
from hasten.facts.scripts.seen import Seen
from hasten.scripts.techniques import batches_by_index, cache_decoded_images, doctor_fixes, evaluation_without_gradients
from hasten.scripts.techniques.script_technique import RunningLoader, ScriptTechnique

_MODULES = (cache_decoded_images, batches_by_index, evaluation_without_gradients)
OF_SCRIPTS: tuple[ScriptTechnique, ...] = (
    *(module.TECHNIQUE for module in _MODULES),
    *doctor_fixes.TECHNIQUES,
)


def filling_steps(plan: Plan, seen: Seen) -> int:
    """How many steps fill a cache of the plan: those of the first epoch; 0 where it has none."""
    if seen.loader is None or not any(each.fills_first_epoch and plan.value_of(each.name) for each in OF_SCRIPTS):
        return 0
    steps, epochs = seen.length.steps, seen.length.epochs
    known = [math.ceil(steps / epochs) if steps and epochs else None, seen.loader.batches]
    return min((each for each in known if each), default=0)


__all__ = ["OF_SCRIPTS", "RunningLoader", "ScriptTechnique", "filling_steps"]
