"""How far each technique reaches, and in which order techniques are tried."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.symptom import Symptom
from hasten.facts.trials import Budget
from hasten.measure.speedup_bound import EVERYTHING, PlannedRun
from hasten.scripts.techniques import OF_SCRIPTS
from hasten.techniques import ALL
from hasten.tuning.search.bounds import (
    REACH,
    REMEDIED,
    SMALL_OPERATIONS,
    Around,
    bounds_of,
    order,
    parts_of,
)

ALONE = Around(on_cpu=True, cores=8, reads_beside=False)
RUN = PlannedRun(steps=100, evaluations=2, turns=5, turn_seconds=2.0)
BUDGET = Budget(  # 100 × 1 + 2 × 5 + 5 × 2 = 120 s
    arm="plain",
    data_wait=0.3,
    transfer=0.0,
    forward=0.2,
    backward=0.4,
    optimizer=0.06,
    python=0.04,
    evaluation=5.0,
    steps=10,
)
TREATS = {technique.name: technique.treats.name for technique in ALL}


def gain(technique: str, around: Around = ALONE, budget: Budget = BUDGET) -> float:
    return bounds_of(budget, RUN, around, TREATS)[technique].most_gain


def test_every_technique_has_a_place_in_the_table_and_every_symptom_in_the_other():
    assert REACH.keys() == {technique.name for technique in (*ALL, *OF_SCRIPTS)}
    assert REMEDIED.keys() == {symptom.name for symptom in Symptom}


def test_a_technique_that_the_table_does_not_know_is_never_skipped():
    assert parts_of("a new one", ALONE) == EVERYTHING
    found = bounds_of(BUDGET, RUN, ALONE, {"a new one": "SLOW_OPTIMIZER", "another": "A_NEW_SYMPTOM"})
    assert found["a new one"].most_gain == found["another"].most_gain == math.inf


def test_whatever_is_around_a_technique_only_adds_to_its_reach():
    for technique, *values in itertools.product(ALL, *[[True, False]] * 2):
        around = Around(on_cpu=values[0], cores=8, reads_beside=values[1])
        assert parts_of(technique.name, ALONE) <= parts_of(technique.name, around)


@pytest.mark.parametrize(
    ("technique", "left"),
    [
        ("fused_optimizer", 114),
        ("evaluation_batch", 110),
        ("cache", 70),
        ("loader_workers", 70),
        ("persistent_workers", 74),
        ("compile", 46),
        ("precision", 40),
        ("activation_checkpointing", 120),
    ],
)
def test_a_technique_is_bounded_by_the_parts_that_it_can_make_shorter(technique, left):
    assert gain(technique) == pytest.approx(120 / left)


def test_a_setting_of_the_process_has_no_bound():
    assert {gain(technique) for technique in ("threads", "flush_denormals")} == {math.inf}


def test_keeping_freed_memory_is_bounded_by_the_page_faults_of_the_process_where_no_worker_has_others():
    few, more = (replace(ALONE, fault_seconds=part * BUDGET.step) for part in (0.003, 0.004))
    assert gain("allocator", few) == pytest.approx(1 / 0.991)
    reason = bounds_of(BUDGET, RUN, few, TREATS)["allocator"].reason
    assert "page faults of newly allocated memory take 0.3 % of a step" in reason
    unbounded = (more, replace(few, fault_seconds=BUDGET.step), replace(few, reads_beside=True))
    assert {gain("allocator", each) for each in (*unbounded, replace(few, on_cpu=False))} == {math.inf}


@pytest.mark.parametrize(
    ("threads", "one_thread", "most"), [(2, 0.0, math.inf), (2, 1.43, 1.0), (2, 1.0, 1.2), (2, 0.6, 2.0), (8, 3.0, 1.6)]
)
def test_fewer_threads_are_bounded_by_the_work_of_one_thread_where_that_is_known(threads, one_thread, most):
    bound = bounds_of(BUDGET, RUN, replace(ALONE, threads=threads, one_thread=one_thread), TREATS)["threads"]
    assert bound.most_gain == pytest.approx(most)
    if most == 1:
        assert bound.reason == "a step takes 1.43 times as long with one thread as with 2"


def test_where_workers_read_beside_the_step_cheaper_reading_can_shorten_all_of_it():
    no_wait = replace(BUDGET, data_wait=0.0, forward=0.5)
    assert gain("cache", ALONE, no_wait) == pytest.approx(120 / 100)
    assert gain("cache", replace(ALONE, reads_beside=True), no_wait) == math.inf


def test_a_bound_brings_the_sentence_for_whoever_is_skipped():
    small = replace(BUDGET, optimizer=0.001, python=0.099)
    found = bounds_of(small, RUN, ALONE, TREATS)
    words = "at most 0.1 % to gain, and less than 1 % is not tried: it can only shorten the update, which takes 0.1 %"
    assert found["fused_optimizer"].reason == f"{words} of the planned run after startup"
    assert found["clipping"].reason.startswith("nothing to gain")


def choice(technique: str, value: int = 1) -> Choice:
    return Choice(technique=technique, value=value, preserves=Preserves.BITS)


def test_what_may_gain_most_comes_first_and_equals_stay_in_their_order():
    names = ["evaluation_batch", "loader_workers", "fused_optimizer", "precision", "clipping", "compile"]
    found = order([choice(name) for name in names], bounds_of(BUDGET, RUN, ALONE, TREATS))
    in_order = ["precision", "loader_workers", "compile", "evaluation_batch", "fused_optimizer", "clipping"]
    assert [each.technique for each in found] == in_order


def test_each_further_value_of_a_technique_promises_half_of_the_one_before():
    given = [choice("loader_workers", value) for value in (4, 3, 2, 1)] + [choice("fused_optimizer", 5)]
    bounds = bounds_of(BUDGET, RUN, ALONE, TREATS)
    whole, other = bounds["loader_workers"].promise, bounds["fused_optimizer"].promise
    assert whole / 4 > other > whole / 8
    assert [each.value for each in order(given, bounds)] == [4, 3, 2, 5, 1]


def test_on_a_cpu_a_cache_is_tried_before_workers_that_read_on_the_cores_of_the_model():
    given = [choice("loader_workers"), choice("cache")]
    for on_cpu, first in ((True, "cache"), (False, "loader_workers")):
        bounds = bounds_of(BUDGET, RUN, replace(ALONE, on_cpu=on_cpu, cores=2), TREATS)
        assert order(given, bounds)[0].technique == first


def test_a_remedy_for_what_was_counted_comes_before_what_may_gain_more_if_it_was_much():
    for faults, first in ((0.03, "allocator"), (0.01, "precision")):
        around = replace(ALONE, fault_seconds=faults * BUDGET.step)
        bounds = bounds_of(BUDGET, RUN, around, {**TREATS, "allocator": "SLOW_ALLOCATION"})
        found = order([choice("precision"), choice("allocator")], bounds)
        assert found[0].technique == first


def test_many_small_operations_are_no_counted_symptom_and_promise_a_part():
    whole = bounds_of(BUDGET, RUN, ALONE, {"compile": "SLOW_MATRIX_PRODUCT"})["compile"]
    found = bounds_of(BUDGET, RUN, ALONE, {"compile": "MANY_SMALL_OPERATIONS"})["compile"]
    python_in_place_of_evaluation = (4 - 10) / 120
    assert found.promise == pytest.approx(SMALL_OPERATIONS * (whole.promise + python_in_place_of_evaluation))
    assert found.most_gain == whole.most_gain


def test_page_faults_of_several_threads_promise_no_more_than_the_step():
    treats = {"allocator": "SLOW_ALLOCATION"}
    whole, more = (
        bounds_of(BUDGET, RUN, replace(ALONE, fault_seconds=factor * (BUDGET.forward + BUDGET.backward)), treats)
        for factor in (1, 5)
    )
    assert more["allocator"].promise == whole["allocator"].promise


def test_page_faults_promise_what_they_cost_and_are_told_as_counted_on_a_processor_alone():
    treats, a_tenth = {"allocator": "SLOW_ALLOCATION"}, 0.1 * (BUDGET.forward + BUDGET.backward)
    whole = bounds_of(BUDGET, RUN, replace(ALONE, on_cpu=False), treats)["allocator"]
    found = bounds_of(BUDGET, RUN, replace(ALONE, fault_seconds=a_tenth), treats)["allocator"]
    assert found.promise == found.counted == pytest.approx(0.1 * whole.promise)
    assert whole.counted == 0
    assert bounds_of(BUDGET, RUN, ALONE, treats)["allocator"].counted == 0
