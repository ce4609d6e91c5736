"""Progress on a terminal, and where there is none."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from hasten.facts.events import Evaluated, Event, Finished, Noticed, Preparing, Started, Trained
from hasten.report.terminal import progress_bar
from hasten.report.terminal.output import is_plain
from hasten.report.terminal.training_progress import Progress, seconds_left

CONTROL_CODE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def an_ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")


def started(**changes: Any) -> Started:
    fields: dict[str, Any] = {
        "job": "digits.py:job",
        "machine": "2 cores, 16 GiB",
        "device": "cpu",
        "parameters": 79_882,
        "samples": 1_437,
        "batch_size": 128,
        "microbatch_size": 64,
        "total_steps": 240,
        "total_epochs": 20,
        "choices": ("precision = bf16", "channels_last = true"),
    }
    return Started(**(fields | changes))


def trained(step: int, **changes: Any) -> Trained:
    fields: dict[str, Any] = {
        "epoch": 0,
        "loss": 0.25,
        "learning_rate": 0.1,
        "momentum": 0.9,
        "gradient_norm": None,
        "seconds": float(step),
        "samples_per_second": 12_345.0,
        "data_wait_share": 0.03,
        "memory_bytes": 431 << 20,
        "skipped_updates": 0,
    }
    return Trained(step=step, **(fields | changes))


def evaluated(step: int, *, best: bool = False, **results: float) -> Evaluated:
    return Evaluated(step=step, epoch=1, results=results, seconds=0.1, batch_size=128, best=best)


def finished(**changes: Any) -> Finished:
    fields: dict[str, Any] = {
        "reason": "the planned end",
        "steps": 240,
        "epochs": 20,
        "seconds": 33.6,
        "results": {"loss": 0.112, "accuracy": 0.978},
        "kept_step": 228,
        "skipped_updates": 1,
        "weights": "runs/job-1/model.safetensors",
    }
    return Finished(**(fields | changes))


RUN: tuple[Event, ...] = (
    started(),
    Noticed(text="clipping is skipped"),
    trained(60),
    evaluated(60, best=True, loss=0.5, accuracy=0.75),
    trained(120),
    evaluated(120, loss=0.6, accuracy=0.5),
    finished(),
)


def shown(stream: io.StringIO, *events: Event, next_command: str = "") -> str:
    progress = Progress(stream, next_command=next_command)
    for event in events:
        progress.log(event)
    progress.close()
    return stream.getvalue()


def test_without_a_terminal_every_fact_is_one_plain_line():
    text = shown(io.StringIO(), *RUN, next_command="hasten profile digits.py:job")
    assert not CONTROL_CODE.search(text)
    assert text.splitlines() == [
        "Training digits.py:job",
        "  machine   2 cores, 16 GiB",
        "  device    cpu",
        "  model     79,882 parameters",
        "  data      1,437 samples, batches of 128 in microbatches of 64",
        "  length    20 epochs, 240 steps",
        "  plan      precision = bf16",
        "            channels_last = true",
        "  note      clipping is skipped",
        "step 60/240  epoch 1/20  loss 0.2500  lr 0.1000  12,345 samples/s  wait 3 %",
        "evaluated at step 60  loss 0.5000  accuracy 0.7500  best",
        "step 120/240  epoch 1/20  loss 0.2500  lr 0.1000  12,345 samples/s  wait 3 %  2 min 00 s left",
        "evaluated at step 120  loss 0.6000  accuracy 0.5000",
        "",
        "  verdict   Trained 240 steps in 33.6 s: loss 0.1120 and accuracy 0.9780",
        "  why       the planned end; the weights are those of step 228",
        "            the seconds are of training, evaluations and checkpoints, without startup",
        "  memory    431 MiB at the peak",
        "  skipped   1 update with a gradient that was not finite",
        "  weights   runs/job-1/model.safetensors",
        "  next      hasten profile digits.py:job",
    ]


def test_a_terminal_gets_a_block_that_changes_in_place():
    text = shown(Terminal(), *RUN, next_command="hasten profile digits.py:job")
    assert "\x1b[2K" in text  # erases the lines of the block
    for fact in ("step 120/240", "epoch 1/20", "2 min 00 s left", "12,345", "431 MiB", "waiting for data", "best"):
        assert fact in text
    assert text.rindex("\x1b[2K") < text.index("the planned end")
    assert "hasten profile digits.py:job" in text


def test_a_terminal_that_wants_no_codes_gets_none(monkeypatch: pytest.MonkeyPatch):
    assert not is_plain(Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert not CONTROL_CODE.search(shown(Terminal(), *RUN))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not CONTROL_CODE.search(shown(Terminal(), *RUN))
    monkeypatch.setenv("NO_COLOR", "")
    assert not is_plain(Terminal())


def test_no_text_of_a_job_reaches_the_terminal_as_a_control_code():
    attack = "\x1b]0;title\x07\x1b[2J\x9b31m\r\x08a\nstep 1"
    events = [
        started(job=attack, machine=attack, device=attack, choices=(attack,)),
        Noticed(text=attack),
        trained(60),
        replace(evaluated(60), results={attack: 1.0}),
        finished(reason=attack, results={attack: 1.0}, weights=attack),
    ]
    assert not CONTROL_CODE.search(shown(io.StringIO(), *events, next_command=attack))
    text = shown(Terminal(), *events, next_command=attack)
    codes = {"\x1b]", "\x1b[2J", "\x9b", "\x07", "\x08", "a\nstep"}
    assert not [code for code in codes if code in text]


@pytest.mark.trap(51)
@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_loss_that_is_no_number_is_shown_as_such(stream: type[io.StringIO]):
    events = (started(), trained(60, loss=math.nan), evaluated(60, loss=math.inf), finished(results={"loss": math.nan}))
    text = shown(stream(), *events)
    assert "loss NaN" in text
    assert "infinity" in text


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_run_of_unknown_length_has_neither_total_nor_estimate(stream: type[io.StringIO]):
    unknown = started(total_steps=None, total_epochs=None, samples=None, choices=())
    text = shown(stream(), unknown, trained(60), trained(120), finished(results={}, weights=None))
    assert "an unknown number of samples" in text
    assert "none: the baseline" in text
    assert "step 120 " in text
    assert "left" not in text
    assert "weights" not in text


def test_the_estimate_leaves_out_what_happened_before_the_first_record():
    compiled = trained(10, seconds=100.0)
    assert seconds_left(compiled, compiled, started()) is None
    assert seconds_left(compiled, trained(20, seconds=110.0), started()) == 220.0
    assert seconds_left(compiled, trained(240, seconds=330.0), started()) is None
    assert seconds_left(compiled, trained(20, seconds=110.0), started(total_steps=None)) is None


def test_preparing_is_shown_as_every_long_work_is_and_gone_when_anything_else_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_bar, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(progress_bar, "REFRESH_SECONDS", 0.0)
    events = [Preparing(done=done, samples=100) for done in range(1, 101)]
    for line, tenth in zip(shown(io.StringIO(), *events, *events).splitlines(), [*range(1, 11)] * 2, strict=True):
        assert re.fullmatch(rf"  preparing  {tenth}0 %(, \d+ s left)?", line)
    text = shown(Terminal(), *events[:50], Noticed(text="a file is damaged"), *events[50:])
    assert "50 %" in text
    assert re.search(r"\x1b\[2K\s*(\x1b\[\d+m)?\s*note\D*a file is damaged", re.sub(r"\x1b\[0m", "", text))
    assert text.endswith("\x1b[2K")
