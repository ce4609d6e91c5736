"""A look at jobs whose evaluation reads a stream: nobody knows how long it is before it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset

from hasten.doctor.profiling import run_profiler
from hasten.doctor.profiling.run_profiler import profile_run
from hasten.doctor.registry import found_in_run
from hasten.errors import DataFailed
from hasten.facts.profiles import NotMeasured
from hasten.report.terminal.profile_text import run_lines
from support.doctor.faulty_model_job import job
from support.doctor.run_profiles import HEALTHY


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        rows, labels = job().train
        return ((rows[0], labels[0]) for _ in count())


def test_a_stream_that_does_not_end_soon_is_no_short_evaluation(monkeypatch):
    monkeypatch.setattr(run_profiler, "_WHOLE_EVALUATION_SECONDS", 0.0)
    look = profile_run(job(valid=Endless(), evaluate_every=2), report=lambda what: None)
    assert isinstance(look.evaluation_seconds, NotMeasured)
    assert "does not say how long it is" in look.evaluation_seconds.why


def test_an_evaluation_whose_seconds_nobody_knows_is_said_and_counts_in_no_share():
    unknown = replace(HEALTHY, evaluation_seconds=NotMeasured(why="it has no end"))
    assert found_in_run(unknown) == []
    assert unknown.epoch_seconds == pytest.approx(10.0)
    assert ("note", "what an evaluation takes is not known: it has no end") in run_lines(unknown)


class TornPictures(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        raise OSError("a file is torn")


def test_an_evaluation_that_fails_is_said_with_what_else_was_seen():
    look = profile_run(job(valid=TornPictures()), report=lambda what: None)
    assert isinstance(look.evaluation_seconds, NotMeasured)
    assert "a file is torn" in look.evaluation_seconds.why
    assert look.together.value > 0


class Once(IterableDataset[Any]):
    def __init__(self) -> None:
        rows, labels = job().train
        self.samples = iter([*zip(rows, labels, strict=True)])

    def __iter__(self) -> Iterator[Any]:
        return self.samples


def test_a_stream_that_can_be_gone_through_once_is_told_that_a_look_needs_it_several_times():
    with pytest.raises(DataFailed, match="a profile reads a stream several times"):
        profile_run(job(train=Once(), epochs=None, max_steps=100), report=lambda what: None)
