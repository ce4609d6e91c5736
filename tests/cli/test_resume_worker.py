"""What the process that `hasten prove resume` kills tells, and when it asks its run to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from multiprocessing import Pipe

import pytest

from hasten.cli.prove.resume_worker import ProgressSender
from hasten.facts.events import Noticed, Resumed, Started, Trained
from hasten.tune.trials.child_process import Messages


class Telling:
    """A ProgressSender, and what it sends and asks for."""

    def __init__(self, steps: int) -> None:
        self._reading, self._line = Pipe(duplex=False)
        self.asked = 0
        self.sender = ProgressSender(Messages(self._line), steps)

    def asks(self, number: int, frame: object) -> None:
        self.asked += 1

    @property
    def told(self) -> list[dict[str, object]]:
        self._line.close()
        return [*iter(Messages(self._reading).wait, None)]

    def close(self) -> None:
        self._line.close()
        self._reading.close()


@pytest.fixture
def telling() -> Iterator[Telling]:
    made = Telling(steps=5)
    before = signal.signal(signal.SIGTERM, made.asks)
    yield made
    signal.signal(signal.SIGTERM, before)
    made.close()


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


def test_every_step_is_told_and_the_end_is_asked_for_once_after_the_last_one(telling: Telling):
    telling.sender.log(started(20))
    telling.sender.log(Noticed(text="something"))
    for step in range(1, 5):
        telling.sender.log(trained(step))
    assert telling.asked == 0
    telling.sender.log(trained(5))
    telling.sender.log(trained(6))
    assert telling.asked == 1
    assert telling.told == [
        {"event": "going", "step": 0, "total_steps": 20},
        {"event": "Noticed"},
        *({"event": "step", "step": step} for step in range(1, 7)),
    ]


@pytest.mark.parametrize("planned", [5, 3])
def test_a_run_whose_planned_end_is_not_later_comes_to_it_by_itself(telling: Telling, planned: int):
    telling.sender.log(started(planned))
    for step in range(1, 6):
        telling.sender.log(trained(step))
    assert telling.asked == 0


@pytest.mark.parametrize(("step", "asked"), [(4, 0), (5, 1)])
def test_a_run_that_goes_on_where_it_was_to_end_is_asked_at_once(telling: Telling, step: int, asked: int):
    """It was killed between the checkpoint of that step and its end."""
    telling.sender.log(resumed(step, None))
    assert telling.asked == asked
    assert telling.told == [{"event": "going", "step": step, "total_steps": None}]
