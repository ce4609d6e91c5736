from __future__ import annotations

from itertools import islice

import pytest
from bench.scale import BASELINE, judged
from bench.scale_arms import (
    BATCH,
    DATA,
    ORDERS,
    arm,
    loader_of,
    order_arm,
    place,
)

from hasten.measure.paired_timing import Window, interleaved


@pytest.mark.parametrize("data", DATA)
def test_an_arm_reads_batches_of_the_whole_data_set(data):
    found = list(islice(loader_of(DATA[data](), shuffle=True).epoch(0, place(1.0)), 4))
    assert [one.samples for one in found] == [BATCH] * 4
    arm(data, True, 1.0)(2)


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_is_read_at_the_place_that_was_asked_for(order):
    sought = ORDERS[order](False)
    assert sought.indices(0, place(1.0) * BATCH, place(1.0) * BATCH + 2).tolist() == [
        place(1.0) * BATCH,
        place(1.0) * BATCH + 1,
    ]
    order_arm(order, True, 0.5)(2)


def test_what_starts_too_late_grows_too_large_or_slows_down_misses():
    microseconds = {BASELINE: 10.0, "end": 12.0}
    windows = [
        Window(arm=name, steps=1000, seconds=microseconds[name] * 1e-3) for name in interleaved(list(microseconds), 12)
    ]
    found = judged(windows, {"start": {"seconds": 2.1, "bytes": 10}, "end": {"seconds": 0.1, "bytes": 700e6}})
    assert [target.outcome for target in found] == ["missed", "met", "met", "missed", "missed"]
