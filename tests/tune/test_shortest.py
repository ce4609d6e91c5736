"""A search that cannot be as short as it was asked to be says so before it begins."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hasten.facts.choice import Preserves
from hasten.facts.trials import Doing
from hasten.report.tuning import Tuning
from hasten.tune.arms import Arms
from hasten.tune.ledger import Options
from hasten.tune.look import look_at
from hasten.tune.search import Search
from hasten.tune.shortest import shortest_seconds

JOB = f"{Path(__file__).with_name('clocked_jobs.py')}:job"


def test_with_slow_steps_every_window_has_one_and_with_fast_ones_the_windows_decide():
    with Arms(JOB) as arms:
        look = look_at(arms, JOB, Preserves.STATISTICS)
    assert shortest_seconds(replace(look, step_seconds=20)) == pytest.approx(2 * 3 * (12 + 1) * 20, rel=0.05)
    assert 10 < shortest_seconds(replace(look, step_seconds=0.001, length=replace(look.length, steps=10_000))) < 30


def test_what_is_to_be_read_later_stays_on_the_terminal():
    stream = io.StringIO()
    screen = Tuning(60, stream, clock=lambda: 0.0)
    screen.doing(Doing(what="slow \x1b[2J steps", stays=True))
    assert stream.getvalue() == "time: slow [2J steps\n"


def test_a_search_says_before_its_first_trial_that_it_cannot_end_in_time():
    told = list[Doing]()

    def tell(doing: Doing) -> None:
        told.append(doing)
        if len(told) > 1:
            raise KeyboardInterrupt  # whoever reads it may not want to wait

    options = Options(seconds=60, ceiling=Preserves.BITS)  # a step of this job takes 1 s by its own clock
    search = Search(Arms(JOB), JOB, options, keep=lambda record: None, tell=tell, earlier=lambda surveyed: [])
    with suppress(KeyboardInterrupt):
        search()
    assert [doing.stays for doing in told] == [False, True]
    assert told[1].what.startswith("a step takes 1 s, so the shortest search that can find a plan takes about 79 s")
