"""What a checkpoint of a run costs: it is saved as a run saves it, in a folder of this process, and thrown away.

The first save of a run also makes the memory that its copies lie in, so the second one is told.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from hasten.checkpoint.files import remove_folder
from hasten.checkpoint.state import flattened
from hasten.checkpoint.store import Store
from hasten.checkpoint.temporary import process_folder
from hasten.errors import StorageFailed
from hasten.facts.events import Event, Noticed, Saved
from hasten.facts.run_look import CheckpointCost
from hasten.facts.saving import Saving, seconds_between
from hasten.facts.sizes import byte_size
from hasten.training.run import Run
from hasten.training.run_state import state_of
from hasten.training.saver import Saver, State

_SAVES = 2
_SPARE = 4  # times what is written, that the disk has room for


def checkpoint_cost(run: Run) -> CheckpointCost:
    """Of the run as it is, between two steps. Raises StorageFailed where there is no room, or the disk refuses;
    Misconfigured for a state that no file can hold."""
    folder = process_folder() / "checkpoints"
    _check_room(run, folder)
    told = list[Event]()
    saver = Saver(
        Store(folder), Saving(), told.append, before_write=lambda: None, shares_processor=run.device.type == "cpu"
    )
    try:
        with closing(saver):
            for _ in range(_SAVES):
                saver.save(_state(run, saver.now()))
                saver.settle()
    finally:
        remove_folder(folder)
    saved = [each for each in told if isinstance(each, Saved)]
    if len(saved) < _SAVES:
        what = next(each.text for each in told if isinstance(each, Noticed))
        raise StorageFailed(what, where=str(folder.parent), fix="set TMPDIR to a folder on another disk")
    last = saved[-1]
    cost = last.seconds if run.device.type == "cpu" else last.stall_seconds
    return CheckpointCost(
        bytes=last.bytes,
        stall_seconds=last.stall_seconds,
        seconds=last.seconds,
        every_seconds=seconds_between(Saving(), cost),
        share=cost / seconds_between(Saving(), cost),
    )


def _state(run: Run, since: float) -> State:
    return State(step=run.steps, epoch=run.epoch, reason="", best=False, trees=state_of(run), since=since)


def _check_room(run: Run, folder: Path) -> None:
    size = sum(tensor.nbytes for tensor in flattened(state_of(run))[1].values())
    free = shutil.disk_usage(folder.parent).free
    if _SPARE * size > free:
        what = f"a checkpoint has {byte_size(size)}, and {byte_size(free)} are free"
        raise StorageFailed(what, where=str(folder.parent), fix="set TMPDIR to a folder with more room")
