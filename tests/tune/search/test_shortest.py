"""A search that cannot be as short as it was asked to be says so before it begins."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path

import pytest

from hasten.facts.choice import Preserves
from hasten.facts.trials import Doing
from hasten.report.terminal.search_progress import Tuning
from hasten.tune.search.plan_search import Search
from hasten.tune.search.search_log import Options
from hasten.tune.search.shortest import warning_of
from hasten.tune.trials.arms import Arms

JOB = f"{Path(__file__).parents[1] / 'jobs' / 'clocked_jobs.py'}:job"


def test_of_as_many_seconds_as_it_needs_nothing_is_said():
    assert warning_of(1.0, 59.0, 60.0) is None
    told = warning_of(30.0, 1500.0, 60.0)
    assert told is not None
    assert told.stays
    assert "takes about 25 min more, and --seconds leaves 60 s" in told.what


def test_what_is_to_be_read_later_stays_on_the_terminal():
    stream = io.StringIO()
    screen = Tuning(60, stream, clock=lambda: 0.0)
    screen.doing(Doing(what="slow \x1b[2J steps", stays=True))
    assert stream.getvalue() == "time: slow [2J steps\n"


@pytest.mark.proof
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
    assert told[1].what.startswith("a step takes 1 s, so the shortest search that can find a plan takes about ")
