"""What the page of a run says."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hasten.errors import Misconfigured
from hasten.facts.events import Finished, Trained
from hasten.report.page.run_log import read_run
from hasten.report.page.run_page import next_command, sentence_of
from hasten.report.page.run_page import page_of as page_of_run
from support.report.parsed import Page, faults
from support.report.samples import sample_run, write_run


def shown(folder: Path, events: list[Any] | None = None) -> Page:
    html = page_of_run(read_run(write_run(folder, events)))
    assert faults(html) == []
    return Page(html)


def without(kind: type) -> list[Any]:
    return [event for event in sample_run() if not isinstance(event, kind)]


def test_a_finished_run_is_told_in_one_sentence(tmp_path: Path):
    log = read_run(write_run(tmp_path))
    assert sentence_of(log).headline == "Trained 600 steps in 2 min 12 s: loss 0.1134 and accuracy 0.9944"
    assert next_command(log) == "hasten tune examples/digits.py:job"


def test_all_that_was_measured_has_its_section(tmp_path: Path):
    page = shown(tmp_path)
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page.source)
    assert headings == ["The plan", "Loss", "Evaluations", "Learning rate, throughput and memory"]
    for told in ("learning rate", "momentum", "samples per second", "waiting for data", "peak memory"):
        assert told in page.text
    assert "5 convolution biases that a batch norm cancels were removed" in page.text


def test_a_run_that_was_killed_says_where_its_log_ends(tmp_path: Path):
    log = read_run(write_run(tmp_path, without(Finished)))
    assert sentence_of(log).headline == "The log of this run ends at step 600 of 600, after 2 min 12 s"
    assert "The run is not finished, or it was killed." in page_of_run(log)


def test_a_line_that_was_cut_off_is_left_out_and_counted(tmp_path: Path):
    write_run(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "trained", "st')
    assert "1 line of the log could not be read, and was skipped." in page_of_run(read_run(tmp_path))


def test_steps_that_were_trained_twice_stand_once_as_they_were_trained_last(tmp_path: Path):
    events = sample_run()
    trained = [event for event in events if isinstance(event, Trained)]
    log = read_run(write_run(tmp_path, [*events, replace(trained[5], loss=0.5)]))
    assert len(log.trained) == len(trained)
    assert log.trained[5].loss == 0.5


def test_a_loss_that_became_nan_is_told(tmp_path: Path):
    write_run(tmp_path)
    log = tmp_path / "metrics.jsonl"
    log.write_text(re.sub(r'"loss": [0-9.]+', '"loss": "NaN"', log.read_text(), count=1))
    found = read_run(tmp_path)
    assert sum(math.isnan(event.loss) for event in found.trained) == 1
    assert "1 value of the training loss is not finite and leaves a gap." in page_of_run(found)


def test_of_many_evaluations_the_last_are_shown(tmp_path: Path):
    page = shown(tmp_path, sample_run(steps=600))
    assert "the last 24 of 100" in page.text
    assert "3,000" in page.text
    assert "best so far" in page.text


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("metrics.jsonl", None, "is not a run folder"),
        ("plan.toml", "[[", "TOML"),
    ],
)
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, name: str, text: str | None, says: str):
    write_run(tmp_path)
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(Misconfigured, match=says):
        read_run(tmp_path)
