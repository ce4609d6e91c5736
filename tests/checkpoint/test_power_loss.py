"""What a power cut leaves of the checkpoints, in every state that a disk may be in after it.

disk_states.py says what these states are. The same checker must find fault with protocols that are known to be broken,
or it would prove nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hasten.checkpoint import files
from hasten.checkpoint.store import Store, write_files, write_manifest
from hasten.errors import StorageFailed
from support.checkpoint import file_faults, stores
from support.checkpoint.disk_states import Began, Outcome, Saved, State, make, outcomes
from support.checkpoint.file_faults import Operation

Log = list[Operation | Began | Saved]
Save = Callable[[Store, int], object]


def saved(store: Store, step: int) -> None:
    store.save(stores.contents(step))


def log_of(folder: Path, steps: range, save: Save, keep: int = 2) -> Log:
    """What a program does that saves checkpoints and keeps some of them; a second one of the last step, too."""
    log: Log = []
    store = Store(folder / "checkpoints")
    with file_faults.watched(lambda operation: log.append(_kept(operation))):
        for step in steps:
            log.append(Began(step))
            save(store, step)
            log.append(Saved(step))
            for old in store.found()[keep:]:
                store.remove(old)
    return log


def _kept(operation: Operation) -> Operation:
    return Operation(operation.name, operation.path, operation.target, bytes(operation.data))


def found_whole(folder: Path) -> int | None:
    """The step that a run goes on from. What has a checkpoint's name must be whole, and what has not, must go."""
    store = Store(folder / "checkpoints")
    store.clean()
    step = stores.step_found(store)
    assert stores.names(store) == sorted(each.path.name for each in store.found()), "a leftover stays"
    try:
        for older in store.found()[1:]:
            older.verify()
    except StorageFailed as error:
        raise AssertionError(f"a damaged one has a checkpoint's name: {error}") from error
    return step


@pytest.fixture
def run(tmp_path):
    return tmp_path  # as the log names it


@pytest.fixture
def place(in_memory):
    """For the states."""
    return in_memory / "state"


def test_in_every_state_after_a_power_cut_the_newest_checkpoint_that_was_promised_or_its_successor_is_found_whole(
    run, place
):
    log = log_of(run, range(1, 5), saved)
    seen = list(outcomes(log, run, found_whole, place))
    assert [outcome for outcome in seen if outcome.wrong] == []
    assert len(seen) > 300
    removed = [entry for entry in log if isinstance(entry, Operation) and entry.name == "rmdir"]
    assert len(removed) == 2


def cut_again(state: State, after: int, place: Path) -> list[Outcome]:
    """What is wrong when the power fails again, while the next start cleans up and saves."""
    folder = place / "again"
    make(state, folder)
    safe = stores.step_found(Store(folder / "checkpoints"))
    shutil.rmtree(folder)
    make(state, folder)
    log: Log = []
    with file_faults.watched(lambda operation: log.append(_kept(operation))):
        store = Store(folder / "checkpoints")
        store.clean()
        log.append(Began(after))
        saved(store, after)
        log.append(Saved(after))
    found = [each for each in outcomes(log, folder, found_whole, place / "state", state, safe) if each.wrong]
    shutil.rmtree(folder)
    return found


@pytest.mark.proof
def test_a_second_power_cut_while_the_next_start_cleans_up_and_saves_loses_nothing(run, in_memory):
    log = log_of(run, range(1, 5), saved)
    states = [outcome.state for outcome in outcomes(log, run, found_whole, in_memory / "state")]
    assert len(states) > 300
    for state in states[::5]:
        assert cut_again(state, 5, in_memory) == []


# Protocols that are known to be broken


def fill(folder: Path, step: int) -> None:
    contents = stores.contents(step)
    write_manifest(folder, contents, write_files(folder, contents, 1))


def renamed_first(store: Store, step: int) -> None:
    """The folder has its name before what is in it is on the disk."""
    folder = store.folder / f"step-{step}"
    files.make_folder(folder)
    fill(folder, step)


def renamed_before_the_names_in_it_are_forced(store: Store, step: int) -> None:
    """Each file is forced, and the folder that they are named in is not."""
    building, folder = store.folder / f".step-{step}.tmp-00000000", store.folder / f"step-{step}"
    files.make_folder(building)
    fill(building, step)
    os.rename(building, folder)
    folder_descriptor = os.open(store.folder, os.O_RDONLY)
    os.fsync(folder_descriptor)
    os.close(folder_descriptor)


def removed_in_place(store: Store, step: int) -> None:
    """An old checkpoint loses its files while it has its name."""
    saved(store, step)
    for old in store.found()[1:]:
        files.remove_folder(old.path)


@pytest.mark.parametrize(
    "broken",
    [renamed_first, renamed_before_the_names_in_it_are_forced, removed_in_place],
    ids=lambda broken: broken.__name__,
)
def test_a_protocol_that_orders_too_little_is_caught(run, place, broken):
    assert any(outcome.wrong for outcome in outcomes(log_of(run, range(1, 4), broken), run, found_whole, place))
