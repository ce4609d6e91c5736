"""Where two runs part: in their logs and in what they were saved with, to the last bit."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from hasten.measure.run_difference import Difference, first_in_lines, first_in_states, lines_of


def trained(step: int, loss: float = 1.0, **fields: Any) -> dict[str, Any]:
    return {"event": "trained", "step": step, "loss": loss, "learning_rate": 0.1, "seconds": step / 3} | fields


def evaluated(step: int, **results: float) -> dict[str, Any]:
    return {"event": "evaluated", "step": step, "results": results, "seconds": 2.0}


LOG = [trained(1), trained(2, 0.5), evaluated(2, loss=0.4, accuracy=0.9), trained(3, 0.25)]


def changed(number: int, line: dict[str, Any]) -> list[dict[str, Any]]:
    return [*LOG[:number], line, *LOG[number + 1 :]]


def differs(found: list[dict[str, Any]], *, whole: bool = True) -> Difference:
    difference = first_in_lines(LOG, found, whole=whole)
    assert difference is not None
    return difference


def test_logs_that_differ_in_what_a_clock_tells_are_the_same():
    found = [line | {"seconds": 9.0, "samples_per_second": 1.0, "memory_bytes": 7, "weights": "x"} for line in LOG]
    assert first_in_lines(LOG, found, whole=True) is None


def test_the_first_loss_that_differs_by_one_bit_is_found_with_its_step_and_its_bits():
    near = math.nextafter(0.5, 1.0)
    difference = differs([trained(1), trained(2, near), evaluated(2, loss=7.0), trained(3, 7.0)])
    assert difference == Difference(
        step=2,
        what="loss",
        expected="0.5 (0x1.0000000000000p-1)",
        found="0.5000000000000001 (0x1.0000000000001p-1)",
    )
    assert str(difference) == (
        "at step 2 loss is 0.5000000000000001 (0x1.0000000000001p-1), and should be 0.5 (0x1.0000000000000p-1)"
    )


def test_a_learning_rate_and_a_result_of_an_evaluation_are_compared():
    assert differs(changed(1, trained(2, 0.5, learning_rate=0.2))).what == "learning_rate"
    difference = differs(changed(2, evaluated(2, loss=0.4, accuracy=0.8)))
    assert (difference.step, difference.what) == (2, "results of the line 'evaluated' of the log/accuracy")


@pytest.mark.parametrize(
    ("found", "step", "expected", "came"),
    [
        ([LOG[0], *LOG[2:]], 2, "there", "missing"),
        (LOG[:-1], 3, "there", "missing"),
        ([*LOG, LOG[-1]], 3, "missing", "there"),
        ([*LOG, trained(4)], 4, "missing", "there"),
    ],
    ids=["skipped", "cut off", "twice at the end", "too many"],
)
def test_no_line_is_missing_and_none_is_there_twice(found: list[dict[str, Any]], step: int, expected: str, came: str):
    difference = differs(found)
    assert (difference.step, difference.expected, difference.found) == (step, expected, came)
    assert difference.what.startswith("the line")


def test_the_beginning_of_a_log_may_end_anywhere_but_must_be_its_beginning():
    assert all(first_in_lines(LOG, LOG[:count], whole=False) is None for count in range(len(LOG) + 1))
    assert differs([LOG[0], LOG[3]], whole=False).found == "missing"


def test_a_log_is_read_line_by_line_without_notices_and_without_a_torn_end():
    lines = [{"event": "started"}, LOG[0], {"event": "noticed", "text": "compiled in 3 s"}, LOG[2]]
    log = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert lines_of(log + b'{"event": "trained", "st') == [LOG[0], LOG[2]]
    assert lines_of(b"") == []


STATE = {
    "model": {"weight": torch.arange(6.0).reshape(2, 3), "calls": torch.tensor(3)},
    "schedule": [1, 0.5, None, ("a", True)],
    "random": np.arange(4, dtype=np.uint32),
}


def copied(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: copied(each) for key, each in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(copied, state))
    return state.clone() if isinstance(state, torch.Tensor) else state.copy() if hasattr(state, "copy") else state


def in_states(expected: Any, found: Any) -> Difference | None:
    return first_in_states(expected, found, step=9)


def test_equal_states_are_the_same():
    assert in_states(STATE, copied(STATE)) is None


def test_one_element_of_a_tensor_is_found_by_its_name_and_index():
    found = copied(STATE)
    found["model"]["weight"][1, 2] = 5.5
    found["schedule"][0] = 2
    difference = in_states(STATE, found)
    assert difference is not None
    assert (difference.step, difference.what) == (9, "model/weight[1, 2]")
    assert difference.expected == "5.0 (0x1.4000000000000p+2)"
    assert difference.found == "5.5 (0x1.6000000000000p+2)"


@pytest.mark.parametrize(
    ("place", "value", "what"),
    [
        (("model", "calls"), torch.tensor(4), "model/calls"),
        (("model", "weight"), torch.zeros(3, 2), "model/weight"),
        (("model", "weight"), STATE["model"]["weight"].double(), "model/weight"),  # type: ignore[index]
        (("random",), np.array([0, 1, 2, 7], dtype=np.uint32), "random[3]"),
        (("schedule",), [1, 0.5, None], "schedule"),
        (("schedule",), [1, 0.5, None, ("a", 1)], "schedule/3/1"),
        (("schedule",), [1, -0.5, None, ("a", True)], "schedule/1"),
        (("model", "new"), 1, "model/new"),
    ],
)
def test_whatever_differs_is_named(place: tuple[str, ...], value: Any, what: str):
    found = copied(STATE)
    holder = found if len(place) == 1 else found[place[0]]
    holder[place[-1]] = value
    difference = in_states(STATE, found)
    assert difference is not None
    assert difference.what == what


def test_numbers_are_compared_by_their_bits():
    assert in_states(math.nan, math.nan) is None
    assert in_states(torch.tensor([math.nan]), torch.tensor([math.nan])) is None
    assert in_states(0.0, -0.0) is not None
    assert in_states(torch.tensor([0.0]), torch.tensor([-0.0])) is not None
