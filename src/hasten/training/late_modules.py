"""Modules that a loss or a model has come to hold since the run began, such as a teacher that the loss makes when it is
first called, or makes anew.

What a checkpoint has to hold is looked for before the first step (reachable), so it has none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.training.reachable import reached

if TYPE_CHECKING:
    from hasten.training.run import Run


def late_modules(run: Run) -> list[str]:
    """What a person is to know of them. Goes through all that hangs on the model and the loss."""
    known = {id(module) for module in run.built.buffers.modules}
    found = reached(run.model, run.job.loss, run.device).modules
    of_model = {id(each) for each in (*run.model.parameters(), *run.model.buffers())}
    late = [
        place
        for place, module in found.items()
        if id(module) not in known
        and any(id(each) not in of_model for each in (*module.parameters(), *module.buffers()))
    ]
    roots = [place for place in late if not any(place.startswith(f"{other}.") for other in late)]
    return [
        f"the {place.partition('.')[0]} holds {place} now, a {type(found[place]).__name__}, and did not when the run "
        "began: no checkpoint has it. Where it moves or is drawn at random, make it before the job is returned, and "
        "change it in its place"
        for place in roots
    ]
