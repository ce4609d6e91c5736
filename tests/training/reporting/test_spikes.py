"""A loss that leaps is told once; noise, a flat loss and a falling one never are."""

from __future__ import annotations

import json
import math
import random
from itertools import count

import pytest
from torch.nn import functional

from hasten.entry import train
from hasten.facts.events import Noticed
from hasten.training.reporting.spikes import WINDOW, Spikes
from support import small_job
from support.training.collected_events import Collected

pytestmark = pytest.mark.fault("loss spike")


def told(losses):
    spikes = Spikes()
    return [step for step, loss in enumerate(losses) if spikes.observe(loss, step) is not None]


def noisy(level, spread, lines=1_000, seed=0):
    draws = random.Random(seed)
    return [level(line) * (1 + spread * draws.gauss(0, 1)) for line in range(lines)]


LEVELS = {
    "flat": lambda line: 2.0,
    "falling": lambda line: 0.5 + 6 * math.exp(-line / 40),
    "falling fast": lambda line: 0.01 + 7 * math.exp(-line / 8),
    "falling all the time": lambda line: 3.0 - 0.001 * line,
    "below zero": lambda line: -2.0,
}


@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_noise_is_no_spike(level, spread):
    assert told(noisy(level, spread)) == []


@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize(("spread", "at"), [(0.0, 40), (0.05, 200)])
def test_a_leap_is_told_where_it_is(level, spread, at):
    losses = noisy(level, spread, 300)
    losses[at] += abs(losses[at]) + 1
    assert told(losses) == [at]


@pytest.mark.parametrize("lines", [1, 100])
def test_a_loss_that_stays_high_is_told_once_and_then_is_the_usual_one(lines):
    losses = noisy(LEVELS["flat"], 0.02, 300)
    losses[100 : 100 + lines] = [loss + 4 for loss in losses[100 : 100 + lines]]
    assert told(losses) == [100]


def test_a_fall_is_no_leap_and_neither_is_the_first_that_is_not_zero():
    assert told([5.0] * 20 + [0.1] * 20) == []
    assert told([0.0] * 20 + [1e-9] + [0.0] * 20) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_no_leap_and_hides_none(value):
    losses = noisy(LEVELS["flat"], 0.02, 100)
    losses[40:60] = [value] * 20
    losses[70] += 4
    assert told(losses) == [70]


@pytest.mark.parametrize("cut", [5, 61])
def test_a_state_that_any_file_can_hold_goes_on_as_if_nothing_had_been(cut):
    losses = noisy(LEVELS["flat"], 0.02, 120)
    losses[60:64] = [loss + 4 for loss in losses[60:64]]
    first, second = Spikes(), Spikes()
    said = [first.observe(loss, step) for step, loss in enumerate(losses[:cut])]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    said += [second.observe(loss, step) for step, loss in enumerate(losses[cut:], start=cut)]
    assert [step for step, text in enumerate(said) if text] == [60]
    assert len(second.state_dict()["before"]) == WINDOW


def test_a_run_tells_it_among_its_log_lines():
    calls = count(1)

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1]) + (40.0 if next(calls) in (40, 41) else 0.0)

    collected = Collected()
    train(small_job(loss=loss, epochs=12, log_every=1), receivers=[collected])
    (text,) = [event.text for event in collected.events if isinstance(event, Noticed)]
    assert text.startswith("the loss jumped to 4")
    assert " by step 40; the 10 log lines before it have a median of " in text
