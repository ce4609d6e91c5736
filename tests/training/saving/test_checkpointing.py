"""What a run saves, when, and what it does when saving fails or something ends it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.checkpoint.files import GrowingFile
from hasten.checkpoint.store import Checkpoint, Store
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.events import Finished, Resumed
from support.checkpoint import stores
from support.training import killed_jobs
from support.training.saved_runs import STEPS, check_same, every, job, notices, resumed, saved_in, saves, trained


@pytest.fixture
def whole(tmp_path) -> Path:
    trained(tmp_path / "whole")
    return tmp_path / "whole"


# ---- when, and what stays


def test_a_run_saves_after_its_first_step_and_at_its_end_where_nobody_says_more(tmp_path):
    events = trained(tmp_path / "run")
    assert saves(events) == [(1, "as planned"), (STEPS, "the end of the run")]


def test_the_best_so_far_is_saved_and_stays(tmp_path):
    rises = iter([1.0, 0.5, *[2.0] * 8])

    class Falling(nn.Module):
        higher_is_better = False

        def update(self, *_: Any) -> None: ...
        def reset(self) -> None: ...
        def compute(self) -> float:
            return next(rises)

    made = job(
        valid=job().train,
        evaluate_every=1,
        stop=hasten.EarlyStopping("judged", patience=50),
        metrics={"judged": Falling()},
        loss=hasten.supervised(functional.cross_entropy),
    )
    trained(tmp_path / "run", made, saving=every(1))
    assert saved_in(tmp_path / "run") == [10, 9, 2]


def test_a_state_that_no_file_can_hold_is_refused_after_the_first_step(tmp_path):
    class Strange(torch.optim.SGD):
        def state_dict(self) -> Any:
            return {**super().state_dict(), "secret": object()}

    made = job(optimizer=lambda params: Strange(params, lr=0.1))
    with pytest.raises(Misconfigured, match="which no checkpoint can store") as caught:
        trained(tmp_path / "run", made)
    assert caught.value.where == "run/optimizers/0/secret"


# ---- going on


def interrupted_after(step: int, **changes: Any) -> hasten.Job:
    """A job whose loss raises in the step after this one, once."""
    before = {"calls": 0}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        before["calls"] += 1
        value = functional.cross_entropy(model(batch[0]), batch[1])
        if before["calls"] == step + 1:
            raise ValueError("as asked for")
        return value

    return job(loss=loss, **changes)


@pytest.mark.fault("user exception")
def test_an_exception_of_the_job_is_raised_when_the_last_whole_step_is_saved(tmp_path, whole):
    with pytest.raises(ValueError, match="as asked for"):
        trained(tmp_path / "run", interrupted_after(6))
    assert saved_in(tmp_path / "run") == [6, 1]
    events = resumed(tmp_path / "run")
    assert next(event for event in events if isinstance(event, Resumed)).step == 6
    check_same(tmp_path / "run", whole)


def test_a_resumed_run_keeps_the_best_of_all_its_evaluations(tmp_path):
    best = {"valid": job().train, "evaluate_every": 2, "keep": "best"}
    worse = {"optimizer": lambda params: torch.optim.SGD(params, lr=0.1, maximize=True), **best}
    trained(tmp_path / "whole", job(**worse))
    with pytest.raises(ValueError, match="as asked for"):
        trained(tmp_path / "run", interrupted_after(6, **worse))
    events = resumed(tmp_path / "run", job(**worse))
    assert next(event for event in events if isinstance(event, Finished)).kept_step == 2
    check_same(tmp_path / "run", tmp_path / "whole")


def test_an_exception_in_the_middle_of_a_window_takes_back_what_it_drew_and_counted(tmp_path):
    def batch_normed(made: hasten.Job) -> hasten.Job:
        model = lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))  # noqa: E731
        return replace(made, model=model)

    plan = hasten.make_plan(accumulation=2)
    trained(tmp_path / "whole", batch_normed(job()), plan=plan)
    with pytest.raises(ValueError, match="as asked for"):
        trained(tmp_path / "run", batch_normed(interrupted_after(13)), plan=plan)
    assert saved_in(tmp_path / "run")[0] == 6
    resumed(tmp_path / "run", batch_normed(job()))
    check_same(tmp_path / "run", tmp_path / "whole")


def test_a_folder_without_a_run_begins_one(tmp_path, whole):
    events = resumed(tmp_path / "run")
    assert next(event for event in events if isinstance(event, Resumed)).checkpoint is None
    check_same(tmp_path / "run", whole)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(Misconfigured, match="it is not a run folder: it contains thesis"):
        resumed(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def damaged(checkpoint: Checkpoint) -> None:
    path = checkpoint.path / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.fault("corrupt or truncated checkpoint")
def test_a_damaged_checkpoint_is_named_passed_over_and_removed_when_a_whole_one_is_there(tmp_path, whole):
    trained(tmp_path / "run", saving=every(3))
    newest, older = Store(tmp_path / "run" / "checkpoints").found()
    damaged(newest)
    events = resumed(tmp_path / "run", saving=every(3))
    begun = next(event for event in events if isinstance(event, Resumed))
    assert begun.checkpoint == str(older.path)
    assert str(newest.path) in begun.notices[0]
    assert "damaged" in begun.notices[0]
    assert not newest.path.exists()
    check_same(tmp_path / "run", whole)


@pytest.mark.fault("corrupt or truncated checkpoint")
def test_where_every_checkpoint_is_damaged_nothing_is_begun_anew_over_them(tmp_path):
    trained(tmp_path / "run", saving=every(3))
    for each in Store(tmp_path / "run" / "checkpoints").found():
        damaged(each)
    before = stores.files_below(tmp_path / "run")
    with pytest.raises(
        StorageFailed, match=r"every checkpoint is damaged: .*step-10 is damaged.*; so are 1 older ones"
    ):
        resumed(tmp_path / "run")
    assert stores.files_below(tmp_path / "run") == before


@pytest.mark.fault("killed during save, rotation or resume")
def test_leftovers_of_a_killed_process_are_removed(tmp_path, whole):
    (whole / "checkpoints" / ".step-7.tmp-0123abcd").mkdir()
    (whole / "checkpoints" / ".step-7.tmp-0123abcd" / "state.json").write_text("{")
    (whole / ".plan.toml.0123abcd.tmp").write_text("half")
    resumed(whole)
    assert not list(whole.rglob(".*"))


# ---- another configuration


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"batch_size": 10}, "batch_size"),
        ({"epochs": 3}, "epochs"),
    ],
)
@pytest.mark.fault("changed configuration on resume")
def test_a_change_of_what_is_trained_is_refused_with_both_values_until_it_is_allowed(whole, changes, key):
    before = (whole / "metrics.jsonl").read_bytes(), saved_in(whole)
    with pytest.raises(Misconfigured, match=f"{key}: .* → {changes[key]}") as caught:
        resumed(whole, job(**changes))
    assert f"--allow-change {key}" in caught.value.fix
    assert ((whole / "metrics.jsonl").read_bytes(), saved_in(whole)) == before
    begun = next(event for event in resumed(whole, job(**changes), allow_change=[key]) if isinstance(event, Resumed))
    assert any(key in notice and "allowed" in notice for notice in begun.notices)


@pytest.mark.trap(38)
@pytest.mark.parametrize("changes", [{"log_every": 5}, {"plan": hasten.make_plan(loader_workers=1)}])
@pytest.mark.fault("changed configuration on resume")
def test_a_change_that_trains_the_same_is_accepted_and_reported(tmp_path, changes):
    trained(tmp_path / "run", saving=every(3))
    damaged(Store(tmp_path / "run" / "checkpoints").found()[0])
    before = killed_jobs.weights(tmp_path / "run")
    plan = changes.pop("plan", None)
    begun = next(e for e in resumed(tmp_path / "run", job(**changes), plan=plan) if isinstance(e, Resumed))
    assert any("does not change what is trained" in notice for notice in begun.notices)
    assert killed_jobs.weights(tmp_path / "run") == before


@pytest.mark.fault("disk full, EIO")
@pytest.mark.parametrize("refused", [range(6, 10)])
def test_lines_that_wait_for_a_full_disk_let_the_training_go_on(tmp_path, whole, monkeypatch, refused):
    """No checkpoint can say then how long the log is."""
    calls, add = [0], GrowingFile.add_line

    def add_line(self: GrowingFile, line: bytes) -> None:
        calls[0] += 1
        if calls[0] in refused:
            raise StorageFailed("No space left on device", where=str(tmp_path), fix="free space")
        add(self, line)

    monkeypatch.setattr(GrowingFile, "add_line", add_line)
    events = trained(tmp_path / "run", saving=every(1))
    assert any("could not be saved" in text for text in notices(events))
    assert STEPS in [step for step, _ in saves(events)]
    told = [each for each in killed_jobs.trace(tmp_path / "run") if each != "noticed"]
    assert told == killed_jobs.trace(whole)
    assert killed_jobs.weights(tmp_path / "run") == killed_jobs.weights(whole)
