"""What a checkpoint of a run costs: one is saved as a run saves it, in a folder of this process, and removed.

The first save also allocates the memory of its copies, so the second one is measured.
"""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from pathlib import Path

from hasten.checkpoint.files import remove_folder
from hasten.checkpoint.folders.process_folder import process_folder
from hasten.checkpoint.state_tree import flattened
from hasten.checkpoint.store import Store
from hasten.errors import StorageFailed
from hasten.facts.events import Event, Saved
from hasten.facts.formatting import byte_size
from hasten.facts.profiles import CheckpointCost
from hasten.facts.saving import Saving, seconds_between
from hasten.training.run import Run
from hasten.training.saving.saver import Saver, State

_SAVES = 2
_SPARE = 4  # times the size of a checkpoint that must be free on the disk


def checkpoint_cost(run: Run, *, keeps_best: bool) -> CheckpointCost:
    """Between two steps of the run. keeps_best: whether a checkpoint has the weights of the best evaluation too.

    Raises StorageFailed where there is no room or the disk fails; Misconfigured for a state that no file can hold.
    """
    best = {name: tensor.clone() for name, tensor in run.model.state_dict().items()} if keeps_best else {}
    folder = process_folder() / "checkpoints"
    _check_room(run, folder, copies=2 if keeps_best else 1)
    events = list[Event]()
    saver = Saver(
        Store(folder), Saving(), events.append, before_write=lambda: None, shares_processor=run.device.type == "cpu"
    )
    try:
        with closing(saver):
            while sum(isinstance(each, Saved) for each in events) < _SAVES:  # it raises at the third that fails
                trees = {**run.state_dict(), "best": best}
                state = State(
                    step=run.steps, epoch=run.epoch, reason="", best=False, trees=trees, since=time.monotonic()
                )
                saver.save(state)
                saver.settle()
    finally:
        remove_folder(folder)
    last = [each for each in events if isinstance(each, Saved)][-1]
    cost = last.seconds if run.device.type == "cpu" else last.stall_seconds
    every = seconds_between(Saving(), cost)
    return CheckpointCost(
        bytes=last.bytes,
        stall_seconds=last.stall_seconds,
        seconds=last.seconds,
        every_seconds=every,
        share=cost / every,
    )


def _check_room(run: Run, folder: Path, copies: int) -> None:
    size = copies * sum(tensor.nbytes for tensor in flattened(run.state_dict())[1].values())
    free = shutil.disk_usage(folder.parent).free
    if _SPARE * size > free:
        what = f"a checkpoint may take {byte_size(size)}, and {byte_size(free)} are free"
        raise StorageFailed(what, where=str(folder.parent), fix="set TMPDIR to a folder with more room")
