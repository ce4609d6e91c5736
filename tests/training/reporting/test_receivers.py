"""Receivers of a run's events: where they are called, and that none of them can end a run."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import hasten
from hasten.errors import JobError, Misconfigured
from hasten.facts.events import Evaluated, Event, Finished, Noticed, Saved, Started, Trained
from support import small_job
from support.ranks.process_group import on_ranks
from support.ranks.rank_jobs import calls_of_receivers
from support.training.collected_events import Collected
from support.training.saved_runs import job


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def notices_in(folder: Path) -> list[str]:
    return [line["text"] for line in logged(folder) if line["event"] == "noticed"]


# ── where they are called ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_function_receives_every_event_beside_the_progress_display(tmp_path: Path, capsys):
    events = list[Event]()
    made = small_job(valid=small_job().train, log_every=1)
    hasten.train(made, run_dir=tmp_path / "run", receivers=[events.append])
    assert {type(each) for each in events} >= {Started, Trained, Evaluated, Saved, Finished}
    assert "why       the planned run is complete" in capsys.readouterr().out


def test_an_object_with_log_and_close_replaces_the_display_and_an_empty_list_shows_nothing(capsys):
    collected, events = Collected(), list[Event]()
    hasten.train(small_job(), receivers=[collected, events.append])
    hasten.train(small_job(), receivers=[])
    assert capsys.readouterr().out == ""
    assert collected.events == events != []


def test_the_receivers_of_a_job_are_called_beside_whatever_train_shows(tmp_path: Path, capsys):
    class Closing(Collected):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    events, kept = list[Event](), Closing()
    made = small_job(receivers=[events.append, kept])
    hasten.train(made, run_dir=tmp_path / "run", receivers=[])
    assert capsys.readouterr().out == ""
    assert isinstance(events[-1], Finished)
    assert (kept.events, kept.closed) == (events, 1)
    hasten.resume(made, run_dir=tmp_path / "run")
    assert "Trained" in capsys.readouterr().out
    assert kept.closed == 2


def test_only_the_leader_calls_receivers(tmp_path: Path):
    assert on_ranks(2, tmp_path, calls_of_receivers) == [True, False]


async def never_awaited(event: Any) -> None: ...


def never_read(event: Any) -> Any:
    yield event


@pytest.mark.parametrize(
    "wrong",
    [print, [3], [Collected], [lambda: 0], [never_awaited], [never_read]],
    ids=["no list", "3", "class", "no argument", "async", "generator"],
)
def test_what_is_no_receiver_is_refused_with_what_to_write(wrong: Any):
    with pytest.raises(JobError, match="receivers") as refusal:
        small_job(receivers=wrong)
    assert "plain function of one event" in refusal.value.fix
    with pytest.raises(Misconfigured, match="receivers"):
        hasten.train(small_job(), receivers=wrong)


# ── what they raise ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("raised", [ValueError("no such project"), SystemExit(3)], ids=["an error", "an exit"])
@pytest.mark.parametrize("at", [Started, Trained, Saved, Finished])
def test_a_receiver_that_raises_is_dropped_with_its_line_in_the_log_and_training_continues(
    tmp_path: Path, raised: BaseException, at: type
):
    calls = list[Event]()

    def to_wandb(event: Event) -> None:
        calls.append(event)
        if isinstance(event, at):
            raise raised

    collected = Collected()
    whole = hasten.train(job(), receivers=[])
    result = hasten.train(job(receivers=[to_wandb]), run_dir=tmp_path / "run", receivers=[collected])
    assert result.steps == 10
    assert all(whole.weights[name].equal(each) for name, each in result.weights.items())
    assert sum(isinstance(each, at) for each in calls) == 1
    (notice,) = [each for each in notices_in(tmp_path / "run") if "to_wandb" in each]
    assert Noticed(text=notice) in collected.events
    assert notice.startswith(f"the receiver to_wandb failed and is not called any more: {type(raised).__name__}: ")
    assert "test_receivers.py:" in notice


def test_ctrl_c_in_a_receiver_still_ends_the_run():
    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hasten.train(small_job(), receivers=[interrupted])


def test_all_receivers_are_closed_and_one_that_cannot_be_is_named_on_standard_error(capsys):
    class Closing(Collected):
        closed = False

        def close(self) -> None:
            self.closed = True
            raise RuntimeError("not now")

    both = [Closing(), Closing()]
    assert hasten.train(small_job(), receivers=both).steps == 10
    assert [each.closed for each in both] == [True, True]
    assert capsys.readouterr().err.count("the receiver Closing failed when it was closed: RuntimeError: not now") == 2


# ── a display that fails ────────────────────────────────────────────────────────────────────────────────────────────


class WriteOnly:
    """A standard output as some notebooks and services have it: neither isatty, nor encoding, nor flush."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


class BrokenTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize(
    ("stream", "what"),
    [
        (None, "standard output is closed"),
        (closed(), "I/O operation on closed file"),
        (BrokenTerminal(), "Input/output error"),
    ],
    ids=["None", "closed", "a terminal that has gone"],
)
def test_a_display_that_fails_never_ends_a_run_and_the_log_says_so(tmp_path: Path, monkeypatch, stream, what):
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    assert hasten.train(job(), run_dir=tmp_path / "run").steps == 10
    (notice,) = notices_in(tmp_path / "run")
    assert notice.startswith("the receiver Progress failed and is not called any more: ")
    assert what in notice


def test_a_standard_output_that_can_only_write_gets_plain_lines(tmp_path: Path, monkeypatch):
    stream = WriteOnly()
    monkeypatch.setattr(sys, "stdout", stream)
    hasten.train(job(), run_dir=tmp_path / "run")
    assert "why       the planned run is complete" in stream.text
    assert notices_in(tmp_path / "run") == []
