"""An arm ends before the machine's memory or disk is full."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple

import pytest

from hasten.tune.trials import trial_limits
from hasten.tune.trials.trial_limits import LimitCheck
from hasten.tune.trials.trial_outcome import Outcome

GIBIBYTE = 1 << 30
Usage = namedtuple("Usage", "total used free")


def test_an_arm_cannot_go_on_where_the_machine_has_little_memory_left(tmp_path, monkeypatch):
    free = iter([100 * GIBIBYTE, 21 * GIBIBYTE, 19 * GIBIBYTE])
    monkeypatch.setattr(trial_limits, "free_memory", lambda: next(free))
    check = LimitCheck(os.getpid(), str(tmp_path))
    assert check.exceeded() is None
    assert check.held_bytes > 0
    fate, words = check.exceeded() or pytest.fail("nothing is told")
    assert fate is Outcome.OUT_OF_MEMORY
    assert words.startswith("the machine has 19.0 GiB of memory left, and 20.0 GiB must stay free; the arm holds ")


def test_an_arm_cannot_go_on_where_the_disk_has_little_left(tmp_path, monkeypatch):
    free = iter([100 * GIBIBYTE, 51 * GIBIBYTE, 49 * GIBIBYTE])
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(0, 0, next(free)))
    check = LimitCheck(os.getpid(), str(tmp_path))
    assert check.exceeded() is None
    assert check.exceeded() == (Outcome.DISK_FULL, "its disk has 49.0 GiB left, and 50.0 GiB must stay free")
