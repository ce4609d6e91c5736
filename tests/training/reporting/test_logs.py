"""Receivers that keep events."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.facts.events import Evaluated, Event, Finished, Noticed, Started, Trained
from hasten.training.reporting.logs import JsonLines, TensorBoard

STARTED = Started(
    job="digits.py:job",
    machine="2 cores",
    device="cpu",
    parameters=10,
    samples=None,
    batch_size=8,
    microbatch_size=4,
    total_steps=2,
    total_epochs=None,
    choices=("precision = bf16",),
)
FINISHED = Finished(
    reason="the planned end",
    steps=2,
    epochs=1,
    seconds=1.5,
    results={"loss": 0.5},
    kept_step=2,
    skipped_updates=0,
    weights=None,
)


def trained(**changes: Any) -> Trained:
    fields: dict[str, Any] = {
        "step": 1,
        "epoch": 1,
        "loss": 0.25,
        "learning_rate": 0.1,
        "momentum": None,
        "gradient_norm": 2.0,
        "seconds": 0.5,
        "samples_per_second": 100.0,
        "data_wait_share": 0.25,
        "memory_bytes": 1 << 20,
        "skipped_updates": 0,
    }
    return Trained(**(fields | changes))


def evaluated(**results: float) -> Evaluated:
    return Evaluated(step=1, epoch=1, results=results, seconds=0.1, batch_size=8, best=True)


def written(path: Path, *events: Event) -> list[dict[str, Any]]:
    receiver = JsonLines(path)
    for event in events:
        receiver.log(event)
    receiver.close()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_event_is_one_line_with_its_kind_and_its_fields(tmp_path: Path):
    lines = written(
        tmp_path / "metrics.jsonl", STARTED, trained(), evaluated(loss=0.5), Noticed(text="a\nb ü"), FINISHED
    )
    assert [line["event"] for line in lines] == ["started", "trained", "evaluated", "noticed", "finished"]
    assert lines[0]["choices"] == ["precision = bf16"]
    assert lines[0]["samples"] is None
    assert lines[1]["loss"] == 0.25
    assert lines[2]["results"] == {"loss": 0.5}
    assert lines[3] == {"event": "noticed", "text": "a\nb ü"}
    assert lines[4]["weights"] is None


@pytest.mark.trap(51)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_kept_and_the_line_is_valid_json(tmp_path: Path, number: float):
    lines = written(tmp_path / "metrics.jsonl", trained(loss=number), evaluated(loss=0.5, accuracy=number))
    assert repr(float(lines[0]["loss"])) == repr(number)
    assert repr(float(lines[1]["results"]["accuracy"])) == repr(number)
    assert lines[1]["results"]["loss"] == 0.5


@given(text=st.text(st.characters(), max_size=20), number=st.floats())
def test_any_text_and_any_number_come_back(tmp_path_factory: pytest.TempPathFactory, text: str, number: float):
    path = tmp_path_factory.mktemp("log") / "metrics.jsonl"
    notice, line = written(path, Noticed(text=text), trained(loss=number))
    assert notice["text"] == text
    assert repr(float(line["loss"])) == repr(number)


def test_a_line_is_on_disk_as_soon_as_it_is_logged_and_earlier_lines_stay(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "earlier"}\n{"torn')
    receiver = JsonLines(path)
    receiver.log(Noticed(text="now"))
    assert path.read_text().splitlines()[2] == '{"event": "noticed", "text": "now"}'
    receiver.close()
    assert path.read_text().startswith('{"event": "earlier"}\n{"torn\n')


@pytest.mark.trap(51)
def test_tensorboard_gets_every_number_of_training_and_evaluation(tmp_path: Path):
    pytest.importorskip("tensorboard")
    receiver = TensorBoard(tmp_path)
    for event in (STARTED, trained(loss=math.nan), evaluated(loss=0.5, accuracy=0.75), FINISHED):
        receiver.log(event)
    receiver.close()

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    scalars = EventAccumulator(str(tmp_path)).Reload()
    tags = set(scalars.Tags()["scalars"])
    assert tags == {
        *("train/epoch", "train/loss", "train/learning_rate", "train/gradient_norm", "train/samples_per_second"),
        *("train/data_wait_share", "train/memory_bytes", "train/skipped_updates"),
        *("evaluation/loss", "evaluation/accuracy"),
    }
    (loss,) = scalars.Scalars("train/loss")
    assert loss.step == 1
    assert math.isnan(loss.value)
    assert [item.value for item in scalars.Scalars("evaluation/accuracy")] == [0.75]
