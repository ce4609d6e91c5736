"""A disk that refuses: what was saved before is untouched, what could not be saved is not there, and why is told."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hasten.errors import StorageFailed
from support.checkpoint import file_faults, stores
from support.checkpoint.forger import as_of_version

CODES = [errno.ENOSPC, errno.EIO]
codes = pytest.mark.parametrize("code", CODES, ids=errno.errorcode.__getitem__)


@pytest.fixture
def store(in_memory):
    return stores.filled(in_memory / "store", 1, 2)


def refused_in_each(
    work: Callable[[], object], code: int, last: int | None = None, watch: file_faults.Watch = file_faults.watched
) -> Iterator[tuple[file_faults.Operation, StorageFailed]]:
    """The operation that the disk refuses, and the error that this gives, for each operation of the work in turn.

    last: None lets only that one fail, sys.maxsize all after it too.
    """
    number, told = 0, None
    while number == 0 or told is not None:
        number, told = number + 1, None
        with file_faults.failing(range(number, last or number + 1), code, watch) as refused:
            try:
                work()
            except StorageFailed as error:
                told = error
        assert bool(refused) is (told is not None), f"refused: {refused}, told: {told}"
        if told is not None:
            yield refused[0], told
    assert number > 3


def check_told(operation: file_faults.Operation, error: StorageFailed, code: int, folder: Path) -> None:
    assert os.strerror(code) in error.what
    assert Path(error.where).is_relative_to(folder), error.where
    assert operation.path.startswith((error.where, str(Path(error.where).parent)))
    assert error.fix
    assert error.exit_code == 15


@codes
@pytest.mark.fault("disk full, EIO")
def test_a_save_that_the_disk_refuses_anywhere_is_told_and_leaves_nothing_but_a_whole_checkpoint(store, code):
    before = stores.files_below(store.folder)
    left = list[int]()
    for operation, error in refused_in_each(lambda: store.save(stores.contents(3)), code):
        check_told(operation, error, code, store.folder)
        left.append(len(stores.names(store)))
        for late in store.found()[:-2]:  # whose name could not be forced to the disk
            late.verify()
            store.remove(late)
        assert stores.files_below(store.folder) == before
    assert left == [2] * (len(left) - 1) + [3]
    assert len(left) > 12


@pytest.mark.parametrize("code", [errno.ENOSPC])
@pytest.mark.fault("disk full, EIO")
def test_where_the_disk_goes_on_refusing_earlier_checkpoints_are_untouched_and_leftovers_go_later(store, code):
    before = stores.files_below(store.folder)
    for operation, error in refused_in_each(lambda: store.save(stores.contents(3)), code, sys.maxsize):
        check_told(operation, error, code, store.folder)
        # A folder whose name cannot be forced, nor taken back, is left; it is whole.
        assert stores.step_found(store) in (2, 3)
        for late in store.found()[:-2]:
            store.remove(late)
        store.clean()
        assert stores.files_below(store.folder) == before
        assert stores.names(store) == ["step-1", "step-2"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE], ids=errno.errorcode.__getitem__)
@pytest.mark.fault("disk full, EIO")
def test_a_checkpoint_that_cannot_be_read_is_told_and_no_older_one_is_taken_in_its_place(store, code):
    """Every listing, opening and reading of the newest in turn: it may be whole."""
    before = stores.files_below(store.folder)
    for operation, error in refused_in_each(lambda: stores.step_found(store), code, watch=file_faults.watched_reads):
        assert os.strerror(code) in error.what
        assert error.where == str(store.folder if operation.name == "listdir" else store.folder / "step-2")
        assert ("remove this checkpoint" in error.fix) is (operation.name != "listdir")
        assert stores.files_below(store.folder) == before
    assert stores.step_found(store) == 2


@pytest.mark.parametrize(("schema", "version"), [(1, None), (4, "9.0")])
def test_what_another_version_saved_is_refused_by_its_name_and_no_older_one_is_taken(store, schema, version):
    as_of_version(store.save(stores.contents(3)).path, schema, version)
    name = version or "0.1.0"
    with pytest.raises(StorageFailed, match=f"saved by hasten {name}, and this version cannot read it") as caught:
        stores.step_found(store)
    assert caught.value.where == str(store.folder / "step-3")
    assert caught.value.fix == f"finish this run with hasten {name}, or start a new run in another folder"
