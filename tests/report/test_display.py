"""Values as people read them."""

from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.report.display import (
    count,
    decimal,
    duration,
    per_second,
    percent,
    printable,
    scaled,
    table,
    time_left,
)


@given(st.text(st.characters()))
def test_nothing_that_a_terminal_obeys_is_printable(text: str):
    assert not {unicodedata.category(character) for character in printable(text)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    printable(text).encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("digits.py:job", "digits.py:job"),
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("two\nlines\tand a tab", "two lines and a tab"),
        ("\x9b2J\x07é×", "2Jé×"),
        ("a\u202eb\u2028c\udc80", "abc"),
    ],
)
def test_text_stays_readable_without_its_control_characters(text: str, shown: str):
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://me:pass@host:5432/x failed", "postgres://[hidden]@host:5432/x failed"),
        ("https://host:8080/a:b@c and a@b.c", "https://host:8080/a:b@c and a@b.c"),
        (f"no access with hf_{'a1' * 17}.", "no access with [hidden]."),
        (f"ghp_{'Z9' * 18}", "[hidden]"),
        (f"key sk-proj-{'x' * 24}", "key [hidden]"),
        ("AKIAIOSFODNN7EXAMPLE", "[hidden]"),
        (f"Authorization: Bearer {'a' * 20}==", "Authorization: Bearer [hidden]"),
        (f"eyJ{'h' * 12}.{'p' * 12}.{'s' * 12}", "[hidden]"),
        (f"{'0a' * 20} task-force risk-averse", f"{'0a' * 20} task-force risk-averse"),
        ("jobs/en-sk-translation-baseline-v2.py:job", "jobs/en-sk-translation-baseline-v2.py:job"),
        ("sk-transformers-baseline-v2.py:job", "sk-transformers-baseline-v2.py:job"),
        (f"data/hf_{'a1' * 17}/x", f"data/hf_{'a1' * 17}/x"),
    ],
)
def test_secrets_that_have_a_shape_of_their_own_are_hidden(text: str, shown: str):
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 ms"),
        (0.00034, "340 µs"),
        (0.0009995, "1.00 ms"),
        (0.00231, "2.31 ms"),
        (0.85, "850 ms"),
        (0.9996, "1.0 s"),
        (12.34, "12.3 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
        (86_399, "1 d 00 h"),
        (3 * 86_400 + 4 * 3600, "3 d 04 h"),
        (math.nan, "–"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, shown: str):
    assert duration(seconds) == shown


def test_an_estimate_of_time_is_no_finer_than_a_second():
    shown = [time_left(seconds) for seconds in (0.2, 8.4, 59.6, 60.0, 125.4, math.nan)]
    assert shown == ["0 s", "8 s", "59 s", "1 min 00 s", "2 min 05 s", "–"]


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0"), (79_882, "79,882"), (86_567_656, "86.6 M"), (999_600_000, "1.00 G")]
)
def test_counts_are_exact_while_they_are_short(number: int, shown: str):
    assert count(number) == shown


@pytest.mark.trap(51)
@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.21344, "0.2134"),
        (12.341, "12.34"),
        (12345.6, "12346"),
        (3.14e-5, "3.1e-05"),
        (-2e9, "-2.0e+09"),
        (0.0, "0"),
        (math.nan, "NaN"),
        (-math.inf, "-infinity"),
    ],
)
def test_a_number_is_short_and_never_a_false_zero(number: float, shown: str):
    assert decimal(number) == shown


def test_large_quantities_carry_a_decimal_prefix():
    shown = [scaled(number, "FLOP") for number in (7, 1000, 14_231_424, 999.7e9)]
    assert shown == ["7.00 FLOP", "1.00 kFLOP", "14.2 MFLOP", "1.00 TFLOP"]


def test_rates_and_shares_are_short():
    rates = [per_second(rate) for rate in (12345.4, 9.96, 4.23, 0.0151)]
    assert rates == ["12,345", "10", "4.2", "0.015"]
    assert [percent(share) for share in (0.034, 1.0)] == ["3 %", "100 %"]


def test_a_table_is_aligned_by_what_a_terminal_shows():
    assert table(["run", "time"], [["plain", "12.3 s"], ["日本 \x1b[1m", "1 s"]]) == [
        "run         time",
        "────────  ──────",
        "plain     12.3 s",
        "日本 [1m     1 s",
    ]
