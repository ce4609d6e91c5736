"""What a result says of the results of training, and of the time that the search took."""

from __future__ import annotations

from dataclasses import replace

from hasten.facts.plan import Between, Total
from hasten.facts.trials import Confirmed, Proven
from hasten.report.plan_sentence import pays, plan_sentence, results_with, stated_sentence
from support.report.samples import BF16, FUSED, LAYOUT, WORKERS, sample_records

CONFIRMED = next(record for record in sample_records(steps=2) if isinstance(record, Confirmed))  # saves 281 s


def test_a_result_says_of_each_choice_whether_the_results_of_training_stay_equal():
    proofs = [
        Proven(choice=BF16, passes=True, reason="…", by_losses=True),
        Proven(choice=FUSED, passes=True, reason="…", gradient_error=0.98, bound=2.0),
        Proven(choice=WORKERS, passes=True, reason="the same bits in 24 steps"),
        Proven(choice=LAYOUT, passes=False, reason="lies beyond the bound", gradient_error=3.4, bound=2.0),
    ]
    assert results_with([BF16, FUSED, WORKERS, LAYOUT], proofs) == [
        "precision: differ beyond rounding; losses of short runs, over seeds, agree within 1 %",
        "fused_optimizer: equal up to rounding, by gradients beside float64",
        "loader_workers: equal to the last bit, by the losses of the first steps",
    ]


def test_losses_that_settle_nothing_are_not_said_to_agree():
    harmless = Proven(choice=BF16, passes=True, reason="…", by_losses=True, inconclusive=True)
    [told] = results_with([BF16], [harmless])
    assert told.endswith("; losses of short runs, over seeds, show no harm; a harm of 1 % is not excluded")
    [told] = results_with([BF16], [replace(harmless, unharmed=True)])
    assert told.endswith("; losses of short runs, over seeds, rule out a harm of 1 %")
    [told] = results_with([FUSED], [replace(harmless, choice=FUSED)])
    assert told.startswith("fused_optimizer: claims rounding; its gradients could not be compared; ")


def test_a_result_says_after_how_many_runs_the_search_is_paid():
    assert pays(CONFIRMED, 600.0) == "after about 3 runs (4 min 41 s saved each, the search took 10 min 00 s)"
    assert pays(CONFIRMED, 61.0) == "within the first run (4 min 41 s saved, the search took 1 min 01 s)"
    slower = replace(CONFIRMED, speedup=replace(CONFIRMED.speedup, ratio=0.98))
    assert pays(slower, 61.0) == ""


def test_a_range_names_its_unit_once_where_both_ends_have_it():
    def shown(low: float, high: float) -> str:
        between = Between(low=low, high=high)
        return stated_sentence(replace(TOTAL, baseline_between=between)).small_print

    assert shown(21.29, 26.6) == "80 % of timings: 21.3–26.6 s"
    assert shown(59.0, 62.0) == "80 % of timings: 59.0 s–1 min 02 s"
    assert shown(0.85, 1.2) == "80 % of timings: 850 ms–1.2 s"
    assert shown(65.0, 130.0) == "80 % of timings: 1 min 05 s–2 min 10 s"


TOTAL = Total(baseline_seconds=60.0, planned_seconds=30.0, one_off_seconds=3.0, break_even_step=None)


def test_the_seconds_of_a_verdict_are_explained_in_one_line():
    assert plan_sentence(CONFIRMED).small_print.split("\n") == [
        "95 % confidence interval of the ratio: 2.93–3.31, from 16 pairs of timings",
        "predicted for the whole run with startup; 80 % of timings: 6 min 19 s–8 min 15 s → 1 min 55 s–2 min 49 s",
    ]
