"""A plan that was not proven is told as such, by the rule of the search and in its own words."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from hasten.facts.plan import Speedup
from hasten.facts.trials import Budget, Confirmed, Doing, Tried, Verdict, verdict_of
from hasten.report.plan_sentence import plan_sentence
from hasten.report.terminal.search_progress import SearchProgress
from hasten.tuning.search.candidates import UNPROVEN
from support.report.samples import BF16, FUSED, LAYOUT, sample_records

CONFIRMED = next(record for record in sample_records(steps=2) if isinstance(record, Confirmed))
EQUAL = Speedup(ratio=1.0, low=0.98, high=1.02, pairs=12)
APART = Speedup(ratio=0.93, low=0.92, high=0.95, pairs=12)  # equal arms, of which one is slower as long as it lives


def between(low: float, high: float) -> Speedup:
    return Speedup(ratio=(low + high) / 2, low=low, high=high, pairs=12)


def confirmed(found: Speedup, noise: Speedup = EQUAL) -> Confirmed:
    earned = tuple(replace(each, kept=each.choice != FUSED) for each in CONFIRMED.earned)
    return replace(CONFIRMED, speedup=found, noise=noise, earned=earned)


def rows(record: Confirmed) -> list[str]:
    stream = io.StringIO()
    screen = SearchProgress(60, stream)
    screen.record(record)
    screen.close()
    return stream.getvalue().splitlines()[1:]  # without the head


@pytest.mark.parametrize(
    ("found", "noise", "verdict"),
    [
        (between(1.05, 1.15), EQUAL, Verdict.FASTER),
        (between(1.05, 1.15), APART, Verdict.WITHIN_NOISE),
        (between(1.05, 1.15), between(1.06, 1.08), Verdict.WITHIN_NOISE),
        (between(1.12, 1.15), APART, Verdict.FASTER),  # farther off than 1 / 0.92
        (between(1.01, 1.03), between(0.95, 1.04), Verdict.WITHIN_NOISE),  # less than equal arms spread
        (between(1.001, 1.009), EQUAL, Verdict.TOO_LITTLE),
        (between(0.99, 1.2), EQUAL, Verdict.NO_DIFFERENCE),
        (between(1.0, 1.2), APART, Verdict.NO_DIFFERENCE),
        (between(0.8, 0.9), EQUAL, Verdict.SLOWER),
    ],
)
def test_a_plan_is_faster_where_it_is_farther_off_than_equal_arms(found: Speedup, noise: Speedup, verdict: Verdict):
    assert verdict_of(confirmed(found, noise)) is verdict


def test_the_screen_keeps_nothing_of_a_plan_that_is_not_proven():
    shown = rows(confirmed(between(1.05, 1.15), APART))
    assert [row.rpartition(")")[2].strip() for row in shown] == [
        *["not proven"] * 3,
        "no gain",
        Verdict.WITHIN_NOISE,
    ]
    shown = rows(confirmed(between(0.99, 1.2)))
    assert shown[-1].endswith(")     no difference")
    assert not any("kept" in row for row in shown)


def test_the_screen_tells_what_a_proven_plan_keeps():
    shown = rows(confirmed(between(1.12, 1.15)))
    assert [row.rpartition(")")[2].strip() for row in shown] == [*["kept"] * 3, "no gain", "measured again"]


def test_a_plan_that_lies_no_farther_off_is_told_beside_what_equal_arms_gave():
    assert str(plan_sentence(confirmed(between(1.05, 1.15), APART))) == (
        "No faster: this plan differs from the baseline no more than the baseline from itself "
        "(1.10×, 95 % confidence interval of the ratio: 1.05–1.15, from 12 pairs of timings; "
        "the baseline against itself: 0.92–0.95; "
        "the baseline is predicted to take 6 min 52 s for the whole run with startup; "
        "80 % of timings: 6 min 19 s–8 min 15 s)"
    )
    assert "gains less than 1 % (1.00×" in str(plan_sentence(confirmed(between(1.001, 1.009))))


def test_a_trial_that_left_before_its_answer_was_known_is_no_answer_on_the_screen():
    stream = io.StringIO()
    screen = SearchProgress(60, stream)
    found = between(0.97, 1.09)
    screen.record(Tried(choice=BF16, on=(), verdict="no difference", reason="", speedup=found, cut_short=True))
    assert stream.getvalue().splitlines()[-1].endswith("stopped early")


def test_a_choice_that_is_in_the_table_again_says_why():
    stream = io.StringIO()
    screen = SearchProgress(60, stream)
    found = between(1.05, 1.15)
    first = Tried(choice=BF16, on=(), verdict="faster", reason=f"{found}", speedup=found)
    for again in (first, replace(first, reason=f"{found}{UNPROVEN}"), replace(first, on=(FUSED,))):
        screen.record(again)
    heading, _, late, base, last = stream.getvalue().splitlines()
    assert heading.startswith("choice ")
    assert late == f"precision = bf16 is faster{UNPROVEN}"
    assert base == "on top of fused_optimizer = fused, which can change what others gain:"
    assert last.split()[:4] == ["precision", "=", "bf16", "1.10"]
    screen.record(replace(first, choice=LAYOUT))
    base, last = stream.getvalue().splitlines()[-2:]
    assert base == "on top of the baseline:"
    assert last.startswith("channels_last = true ")  # as the plan writes it


def test_a_plan_that_is_measured_again_says_without_what():
    stream = io.StringIO()
    screen = SearchProgress(60, stream)
    whole = confirmed(between(1.12, 1.15))
    for choices in (whole.choices, [each for each in whole.choices if each != FUSED]):
        screen.record(replace(whole, choices=tuple(choices), earned=()))
    assert stream.getvalue().splitlines()[2] == "measured again without fused_optimizer = fused:"


def test_the_time_that_is_left_is_no_promise():
    stream = io.StringIO()
    clock = iter([0.0, 40.0, 61.0])
    screen = SearchProgress(60, stream, clock=lambda: next(clock))
    screen.doing(Doing(what="wave 1"))
    screen.doing(Doing(what="confirming"))
    assert stream.getvalue().splitlines() == ["wave 1 … about 20 s left", "confirming … the planned 60 s are over"]


def test_once_the_planned_time_is_over_the_terminal_says_when_the_result_is_expected():
    stream = io.StringIO()
    clock = iter([0.0, 50.0, 61.0, 90.0])
    screen = SearchProgress(60, stream, clock=lambda: next(clock))
    screen.doing(Doing(what="proving", to_end=35.0))
    screen.doing(Doing(what="confirming"))
    screen.doing(Doing(what="running the patched file"))
    assert stream.getvalue().splitlines() == [
        "proving … about 35 s left",
        "confirming … about 24 s left, past the planned 60 s",
        "running the patched file … later than expected, past the planned 60 s",
    ]


def test_a_wait_is_one_line_where_lines_stay():
    stream = io.StringIO()
    screen = SearchProgress(60, stream, clock=lambda: 0.0)
    for share in (99, 78, 80):
        screen.doing(
            Doing(what=f"waiting: other programs take {share} % of the processor", seconds_left=40.0, waits=True)
        )
    assert stream.getvalue().splitlines() == ["waiting: other programs take 99 % of the processor … gives up in 40 s"]


def test_where_lines_stay_a_long_comparison_says_every_ten_seconds_how_much_is_done():
    stream, now = io.StringIO(), 0.0
    screen = SearchProgress(60, stream, clock=lambda: now)
    screen.doing(Doing(what="confirming"))
    for done in range(1, 8):
        now += 4.0
        screen.doing(Doing(what="confirming", done=done, whole=12, ratios={"the whole plan": 1.5}))
    assert stream.getvalue().splitlines() == [
        "confirming … about 1 min 00 s left",
        "confirming: 3 of 12 rounds … about 48 s left",
        "confirming: 6 of 12 rounds … about 36 s left",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "rows"), [("80", 2), ("30", 5)])
def test_a_row_of_the_table_fits_a_terminal_of_80_columns(columns: str, rows: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", columns)
    stream = Terminal()
    tried = Tried(choice=LAYOUT, on=(), verdict="no difference", reason=str(EQUAL), speedup=EQUAL)
    SearchProgress(60, stream).record(tried)
    shown = stream.getvalue().splitlines()
    assert len(shown) == rows
    assert shown[-1].removesuffix("\x1b[0m").endswith("difference")


@pytest.mark.parametrize(
    ("waits", "parts"),
    [
        (0.05, "step        200 ms: data 25 %, forward 25 %, backward 50 % (4 steps)"),
        (0.0, "step        150 ms: batch and forward 33 %, backward 67 % (4 steps)"),
    ],
    ids=["with a loader", "without one"],
)
def test_the_screen_divides_a_step_of_the_baseline(waits: float, parts: str):
    stream = io.StringIO()
    screen = SearchProgress(60, stream)
    none = {"transfer": 0.0, "optimizer": 0.0, "python": 0.0, "evaluation": 0.0}
    budget = Budget(arm="plain", data_wait=waits, forward=0.05, backward=0.1, steps=4, **none)
    screen.record(budget)
    screen.record(replace(budget, arm="planned"))
    assert stream.getvalue().strip() == parts
