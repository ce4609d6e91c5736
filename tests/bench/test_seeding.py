from __future__ import annotations

import random
from itertools import islice

import pytest
from bench.seeding import BASELINE, OURS, judged
from bench.seeding_arms import BATCH, Numbers, SteadyNumbers, loader_of, seeded, unseeded

from hasten.data.sources.augmented import steady_reason
from hasten.measure.paired_timing import Window, compare, interleaved


def test_only_the_data_set_that_says_nothing_of_itself_is_seeded():
    assert steady_reason(Numbers()) is None
    assert steady_reason(SteadyNumbers()) == "a sample is its own index"


def test_both_arms_read_the_same_samples_in_the_same_order():
    first, second = [
        [each.batch.tolist() for each in islice(loader_of(dataset).epoch(0), 3)]
        for dataset in (Numbers(), SteadyNumbers())
    ]
    assert first == second


@pytest.mark.parametrize("arm", [seeded, unseeded])
def test_an_arm_reads_as_many_batches_as_are_asked_for_and_leaves_what_training_draws_as_it_was(arm):
    window = arm()
    state = random.getstate()
    window(3)
    assert random.getstate() == state


@pytest.mark.parametrize(("microseconds", "outcome"), [(9.0, "met"), (11.0, "missed")])
def test_the_cost_is_judged_for_one_sample(microseconds, outcome):
    seconds = {BASELINE: 1e-3, OURS: 1e-3 + microseconds * BATCH / 1e6}
    windows = [Window(arm=name, steps=100, seconds=100 * seconds[name]) for name in interleaved([BASELINE, OURS], 12)]
    target = judged(compare(windows, baseline=BASELINE, challenger=OURS))
    assert target.value == pytest.approx(microseconds)
    assert target.outcome == outcome
