"""Where the seconds of a training script go, as lines, and what its findings cost of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hasten.doctor.script_prices import with_prices
from hasten.facts.finding import Finding, Safety, Severity
from hasten.facts.scripts.script_times import ScriptTimes, Sync
from hasten.facts.scripts.seen import Length, Seen, SeenLoader, SeenModel
from hasten.report.script_budget import budget_lines, budget_sentence, priced_rows

PARTS = {"data_wait": 0.11, "forward": 0.02, "backward": 0.05, "optimizer": 0.02, "python": 0.0}
TIMES = ScriptTimes(
    start=2.0,
    step=0.2,
    shortest=0.19,
    longest=0.25,
    windows=8,
    window_steps=3,
    parts=PARTS,
    turn=1.0,
    no_turn="",
    interruptions=0.0,
    syncs=(),
    others=0.0,
)
LOADER = SeenLoader(
    number=0,
    kind="DataLoader",
    dataset="Photos",
    dataset_file="",
    made=(),
    made_by="",
    rebuilt_by="",
    batch_size=8,
    batches=10,
    workers=0,
)
MODEL = SeenModel(kind="Net", parameters=9, trained=9, device="cpu", names=(), images=(), inputs=(), called=())
SEEN = Seen(
    loader=LOADER,
    model=MODEL,
    optimizers=(),
    main=0,
    backward=(),
    windows=(),
    autocast="",
    length=Length(steps=20, epochs=2),
    updates=4,
    seconds=1.0,
)
ENDLESS = Length(steps=None, epochs=None, why="train.py:9 is a while loop")


def finding(code: str, line: int, severity: Severity = Severity.SLOW, safety: Safety | None = None) -> Finding:
    return Finding(
        code=code,
        rule=code,
        severity=severity,
        message="is slow",
        fix="mend it",
        path="train.py",
        line=line,
        column=5,
        source="x",
        safety=safety,
    )


def test_a_step_and_the_whole_run_are_divided():
    assert budget_lines(SEEN, TIMES) == [
        ("step", "200 ms: data 55 %, forward 10 %, backward 25 %, update 10 %"),
        ("", "190 ms to 250 ms in 8 timings of 3 steps"),
        ("whole run", "8.0 s: start 2.0 s, 20 steps 4.0 s, between epochs 2.0 s"),
    ]


def test_a_script_of_unknown_length_and_without_a_loader_has_a_step_alone():
    parts = {**PARTS, "data_wait": 0.0, "python": 0.11}
    seen, times = replace(SEEN, loader=None, length=ENDLESS), replace(TIMES, parts=parts, turn=None, no_turn="none")
    assert budget_lines(seen, times) == [
        ("step", "200 ms: batch and forward 10 %, backward 25 %, update 10 %, other 55 %"),
        ("", "190 ms to 250 ms in 8 timings of 3 steps"),
    ]


def test_what_waits_for_a_gpu_and_what_disturbs_is_said():
    times = replace(TIMES, syncs=(Sync(file="train.py", line=12, times=2.0),), others=0.4, turn=None, no_turn="it hung")
    assert budget_lines(SEEN, times)[3:] == [
        ("syncs", "Python waits for the GPU 2 times in a step: train.py:12 (2×)"),
        ("note", "the time between two epochs is not known: it hung"),
        ("note", "other programs used 40 % of the CPU: run this again when nothing else runs"),
    ]


def test_a_finding_costs_at_most_its_part_of_the_run():
    findings = [finding("H101", 7), finding("H413", 19), finding("H303", 16)]
    priced = with_prices(findings, TIMES, SEEN.length)
    assert [each.price and each.price.seconds for each in priced] == [pytest.approx(2.2), pytest.approx(2.0), None]
    assert [each.price and each.price.whole_seconds for each in priced] == [8.0, 8.0, None]
    endless = with_prices(findings, TIMES, ENDLESS)
    assert [each.price and (each.price.seconds, each.price.whole) for each in endless] == [
        (0.11, "step"),
        (1.0, "turn"),
        None,
    ]


def test_prices_are_in_columns_and_findings_of_one_rule_share_a_block():
    findings = [
        finding("H401", 3, Severity.WRONG),
        *with_prices([finding("H101", 7), finding("H413", 19, safety=Safety.SAFE)], TIMES, SEEN.length),
        finding("H417", 20),
        finding("H417", 22),
    ]
    assert priced_rows(findings) == [
        "saves at most  finding",
        "wrong          H401  train.py:3:5  is slow",
        "                     → mend it",
        "2.2 s  28 %    H101  train.py:7:5  is slow",
        "                     → mend it",
        "2.0 s  25 %    H413  train.py:19:5  is slow",
        "                     → mend it  [--fix]",
        "not priced     H417  train.py:20:5  is slow",
        "                     also at train.py:22:5",
        "                     → mend it",
    ]


def test_prices_of_a_training_of_unknown_length_are_of_a_step():
    title, head, _ = priced_rows(with_prices([finding("H101", 7)], TIMES, ENDLESS))
    assert (title, head) == ("saves of a step  finding", "110 ms  55 %     H101  train.py:7:5  is slow")


def test_the_sentence_names_the_largest_part_of_a_step():
    priced = with_prices([finding("H101", 7)], TIMES, SEEN.length)
    sentence = budget_sentence(SEEN, TIMES, priced, 1)
    assert sentence.headline == "A step takes 200 ms, 55 % of it waiting for data"
    assert sentence.small_print.split("\n") == [
        "1 finding in 1 file",
        "the seconds of a finding are an upper bound of what its fix saves",
    ]
