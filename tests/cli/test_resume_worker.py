"""What the process that `hasten prove resume` kills reports, and when it asks its run to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from hasten.cli.prove.resume_worker import StepReporter
from hasten.facts.events import Noticed, Resumed, Started, Trained


class Reports:
    """A reporter whose messages and requests to end are kept."""

    def __init__(self) -> None:
        self.sent, self.asked = list[Mapping[str, Any]](), 0
        self.reporter = StepReporter(cast("Any", self), steps=5)

    def send(self, message: Mapping[str, Any]) -> None:
        self.sent.append(message)

    def asks(self, number: int, frame: object) -> None:
        self.asked += 1


@pytest.fixture
def reports() -> Iterator[Reports]:
    made = Reports()
    before = signal.signal(signal.SIGTERM, made.asks)
    yield made
    signal.signal(signal.SIGTERM, before)


def started(total_steps: int | None) -> Started:
    return Started(
        job="job", machine="", device="cpu", parameters=1, samples=None, batch_size=1, microbatch_size=1,
        total_steps=total_steps, total_epochs=None, choices=(),
    )  # fmt: skip


def resumed(step: int, total_steps: int | None) -> Resumed:
    return Resumed(started=started(total_steps), step=step, checkpoint="x", notices=())


def trained(step: int) -> Trained:
    return Trained(
        step=step, epoch=0, loss=1.0, learning_rate=0.1, momentum=None, gradient_norm=None, seconds=1.0,
        samples_per_second=1.0, data_wait_share=0.0, memory_bytes=1, skipped_updates=0,
    )  # fmt: skip


def test_every_step_is_reported_and_the_end_is_asked_for_once_after_the_last_one(reports: Reports):
    reports.reporter.log(started(20))
    reports.reporter.log(Noticed(text="something"))
    for step in range(1, 5):
        reports.reporter.log(trained(step))
    assert reports.asked == 0
    reports.reporter.log(trained(5))
    reports.reporter.log(trained(6))
    assert reports.asked == 1
    assert reports.sent == [
        {"event": "going", "step": 0, "total_steps": 20},
        {"event": "Noticed"},
        *({"event": "step", "step": step} for step in range(1, 7)),
    ]


@pytest.mark.parametrize("planned", [5, 3])
def test_a_run_whose_planned_end_is_not_later_comes_to_it_by_itself(reports: Reports, planned: int):
    reports.reporter.log(started(planned))
    for step in range(1, 6):
        reports.reporter.log(trained(step))
    assert reports.asked == 0


@pytest.mark.parametrize(("step", "asked"), [(4, 0), (5, 1)])
def test_a_run_that_resumes_where_it_was_to_end_is_asked_at_once(reports: Reports, step: int, asked: int):
    """It was killed between the checkpoint of that step and its end."""
    reports.reporter.log(resumed(step, None))
    assert reports.asked == asked
    assert reports.sent == [{"event": "going", "step": step, "total_steps": None}]
