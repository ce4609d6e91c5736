"""A process that is killed inside any file operation of the checkpoints leaves whole ones and leftovers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hasten.checkpoint.store import Store
from support.checkpoint import file_faults, stores

# Processes are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

STEPS = (1, 2, 3)


def killed_in_each(
    origin: Path, work: Callable[[Store], object], watch: file_faults.Watch = file_faults.watched
) -> Iterator[tuple[int, Store]]:
    """The store as each number of an operation leaves it, from the same beginning."""
    number = 1
    while True:
        folder = origin.with_name(f"killed-{number}")
        shutil.copytree(origin, folder, symlinks=True)
        store = Store(folder)
        if not file_faults.killed_inside(number, lambda store=store: work(store), watch):
            break
        yield number, store
        number += 1
    assert number > 5


def check_next_start(store: Store, *steps: int) -> None:
    """What was whole is found again with its content, and nothing else is left."""
    store.clean()
    assert stores.names(store) == sorted(f"step-{step}" for step in steps)
    assert stores.step_found(store) == max(steps)
    assert all(stores.is_right(each.read()) for each in store.found())


@pytest.fixture
def three(in_memory):
    stores.filled(in_memory / "store", *STEPS)
    return in_memory / "store"


@pytest.mark.fault("killed during save, rotation or resume")
def test_killed_inside_any_operation_of_a_save_the_old_or_the_new_checkpoint_is_found_and_none_is_lost(three):
    found = list[int | None]()
    for number, store in killed_in_each(three, lambda store: store.save(stores.contents(4))):
        found.append(stores.step_found(store))
        check_next_start(store, *STEPS, *[4] * (found[-1] == 4))
        assert store.save(stores.contents(4)).path.name == ("step-4" if found[-1] == 3 else "step-4.2"), number
    assert found == [3] * (len(found) - 1) + [4]  # the last operation is that which makes the name safe


@pytest.mark.proof
def test_killed_inside_any_operation_of_the_first_save_nothing_or_the_new_checkpoint_is_found(in_memory):
    found = list[int | None]()
    (in_memory / "store").mkdir()
    for _, store in killed_in_each(in_memory / "store", lambda store: store.save(stores.contents(4))):
        found.append(stores.step_found(store))
        store.clean()
        assert stores.names(store) == ["step-4"] * (found[-1] == 4)
    assert found == [None] * (len(found) - 1) + [4]


@pytest.mark.fault("killed during save, rotation or resume")
def test_killed_inside_any_operation_of_a_removal_the_old_checkpoint_is_whole_or_gone(three):
    stayed = list[bool]()
    for _, store in killed_in_each(three, lambda store: store.remove(store.found()[-1])):
        assert stores.step_found(store) == 3
        stayed.append(store.found()[-1].step == 1)
        check_next_start(store, *STEPS[1 - stayed[-1] :])
    assert stayed == sorted(stayed, reverse=True)
    assert set(stayed) == {True, False}


@pytest.mark.proof
@pytest.mark.fault("killed during save, rotation or resume")
def test_killed_inside_any_operation_of_cleaning_up_the_next_start_ends_the_work(three):
    for name in (".step-1.tmp-0123abcd", ".step-9.tmp-0123abcd"):
        shutil.copytree(three / "step-1", three / name)
    for _, store in killed_in_each(three, lambda store: store.clean()):
        assert stores.step_found(store) == 3
        check_next_start(store, *STEPS)


@pytest.mark.proof
@pytest.mark.fault("killed during save, rotation or resume")
def test_killed_while_it_looks_for_the_newest_nothing_has_changed(three):
    (three / "step-3" / "state.json").write_bytes(b"damaged")
    before = stores.files_below(three)
    for _, store in killed_in_each(three, lambda store: stores.step_found(store, []), file_faults.watched_reads):
        assert stores.files_below(store.folder) == before
        damaged = []
        assert stores.step_found(store, damaged) == 2
        assert [each.step for each in damaged] == [3]
