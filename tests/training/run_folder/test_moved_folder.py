"""A folder that is moved, removed or taken over while a run trains into it: what is there then is no more the run's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.checkpoint.locks.run_lock import NAME, run_lock
from hasten.checkpoint.store import Store
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.events import Event, Saved
from hasten.training.run_folder.run_directory import RunFolder
from support.training.saved_runs import STEPS, check_same, every, job, resumed, saved_in, trained


class Calling:
    """Calls once, when an event comes that is waited for."""

    def __init__(self, awaited: Callable[[Event], bool], call: Callable[[], object]) -> None:
        self._awaited, self._calls = awaited, [call]

    def log(self, event: Event) -> None:
        if self._calls and self._awaited(event):
            self._calls.pop()()

    def close(self) -> None:
        """Nothing is open."""


def calling_at(step: int, call: Callable[[], object]) -> hasten.Job:
    """A job whose loss calls once, within this step."""
    steps = [0]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        steps[0] += 1
        if steps[0] == step:
            call()
        return functional.cross_entropy(model(batch[0]), batch[1])

    return job(loss=loss)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_job_that_changes_the_working_directory_is_told_and_nothing_is_written_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "elsewhere" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    def model() -> nn.Module:
        os.chdir("elsewhere")
        return nn.Linear(6, 3)

    with pytest.raises(StorageFailed, match="has changed the working directory") as caught:
        trained(Path("run"), job(model=model))
    assert f"--run-dir {tmp_path / 'run'}" in caught.value.fix
    assert content(tmp_path / "elsewhere") == {}
    os.chdir(tmp_path)
    trained(tmp_path / "run", job(model=model))
    assert content(tmp_path / "elsewhere") == {}
    assert saved_in(tmp_path / "run")[0] == STEPS


def test_a_checkpoint_is_where_the_run_is_although_the_job_goes_elsewhere_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    save = Store.save

    def going(store: Store, *given: Any) -> Any:
        os.chdir(tmp_path / "elsewhere")
        return save(store, *given)

    with monkeypatch.context() as patch, pytest.raises(StorageFailed):
        patch.setattr(Store, "save", going)
        trained(Path("run"), saving=every(2))
    assert content(tmp_path / "elsewhere") == {}
    assert 2 in saved_in(tmp_path / "run")


@pytest.fixture
def next_run(tmp_path: Path) -> Iterator[tuple[Callable[[], None], Callable[[], dict[str, bytes]]]]:
    """Move tmp_path/run away and let another one hold that name, until the test is over; what that one has then."""
    trained(tmp_path / "next", job(seed=5), saving=every(3))
    seen = list[dict[str, bytes]]()
    with ExitStack() as held:

        def take_the_name() -> None:
            (tmp_path / "run").rename(tmp_path / "moved")
            (tmp_path / "next").rename(tmp_path / "run")
            held.enter_context(run_lock(tmp_path / "run"))
            seen.append(content(tmp_path / "run"))

        yield take_the_name, lambda: seen[0]


def check_untouched(folder: Path, wanted: dict[str, bytes]) -> None:
    assert content(folder) == wanted
    with pytest.raises(Misconfigured, match="trains into this folder"):
        resumed(folder)


def moving_when_saved(step: int, take_the_name: Callable[[], None]) -> Calling:
    """Once the checkpoint of this step is on the disk, and before another one is begun."""
    return Calling(lambda event: isinstance(event, Saved) and event.step == step, take_the_name)


def test_a_run_whose_folder_was_moved_ends_and_leaves_the_next_one_of_its_name_alone(tmp_path, next_run):
    take_the_name, had = next_run
    moving = moving_when_saved(2, take_the_name)
    with pytest.raises(StorageFailed, match="was moved or removed while this run trained") as caught:
        hasten.train(job(log_every=100), run_dir=tmp_path / "run", receivers=[moving], saving=every(2))
    assert (caught.value.exit_code, caught.value.where) == (15, str(tmp_path / "run"))
    check_untouched(tmp_path / "run", had())
    assert saved_in(tmp_path / "moved") == [2]


def test_a_moved_run_goes_on_in_its_new_place(tmp_path, next_run):
    trained(tmp_path / "whole", saving=every(2))
    moving = moving_when_saved(2, next_run[0])
    with pytest.raises(StorageFailed, match="resume the run in its new place"):
        hasten.train(job(), run_dir=tmp_path / "run", receivers=[moving], saving=every(2))
    resumed(tmp_path / "moved", saving=every(2))
    check_same(tmp_path / "moved", tmp_path / "whole")


def test_a_run_whose_lock_was_removed_ends_and_leaves_the_folder_to_the_next_one(tmp_path):
    run, had = tmp_path / "run", list[dict[str, bytes]]()
    with ExitStack() as held:

        def take_over() -> None:
            (run / NAME).unlink()
            held.enter_context(run_lock(run))
            had.append(content(run))

        with pytest.raises(StorageFailed, match="or its lock file, was"):
            trained(run, calling_at(5, take_over), saving=every(100))
        check_untouched(run, had[0])


def test_a_folder_in_which_another_run_begins_before_it_is_locked_is_refused(tmp_path, monkeypatch):
    create, before = RunFolder.create, list[dict[str, bytes]]()

    def created(path: Path) -> RunFolder:
        folder = create(path)
        monkeypatch.undo()
        trained(path)
        before.append(content(path))
        return folder

    monkeypatch.setattr(RunFolder, "create", created)
    with pytest.raises(Misconfigured, match="another run has begun in this folder meanwhile"):
        trained(tmp_path / "run", job(seed=5))
    assert content(tmp_path / "run") == before[0]
