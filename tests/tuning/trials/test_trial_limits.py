"""An arm ends before the disk of its folder is full; of memory see test_misbehaving_jobs.py."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple

from hasten.tuning.trials.arms import LimitCheck
from hasten.tuning.trials.trial_outcome import Outcome

GIBIBYTE = 1 << 30
Usage = namedtuple("Usage", "total used free")


def test_an_arm_cannot_go_on_where_the_disk_has_little_left(tmp_path, monkeypatch):
    free = iter([100 * GIBIBYTE, 51 * GIBIBYTE, 49 * GIBIBYTE])
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(0, 0, next(free)))
    check = LimitCheck(os.getpid(), str(tmp_path))
    assert check.exceeded() is None
    assert check.exceeded() == (Outcome.DISK_FULL, "its disk has 49.0 GiB left, and 50.0 GiB must stay free")
