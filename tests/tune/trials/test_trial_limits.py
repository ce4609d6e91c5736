"""What an arm may take, and how that is counted."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest

from hasten.tune.trials import trial_limits as limits
from hasten.tune.trials.trial_limits import LimitCheck, Limits, folder_bytes
from hasten.tune.trials.trial_outcome import Outcome

GIBIBYTE = 1 << 30
Usage = namedtuple("Usage", "total used free")


def watch(folder: Path, **fields: int) -> LimitCheck:
    return LimitCheck(os.getpid(), str(folder), Limits(**fields))


def test_an_arm_that_keeps_to_what_is_free_can_go_on(tmp_path):
    assert watch(tmp_path).exceeded() is None


def test_an_arm_cannot_go_on_where_the_machine_has_little_left(tmp_path, monkeypatch):
    free = iter([100 * GIBIBYTE, 11 * GIBIBYTE, 9 * GIBIBYTE])
    monkeypatch.setattr(limits, "free_memory", lambda: next(free))
    watching = watch(tmp_path)
    assert watching.exceeded() is None
    fate, words = watching.exceeded() or pytest.fail("nothing is told")
    assert fate is Outcome.OUT_OF_MEMORY
    assert words.startswith("the machine has 9.00 GiB of memory left, less than the 10.0 GiB that must stay free")


def test_an_arm_cannot_go_on_where_the_disk_has_little_left(tmp_path, monkeypatch):
    free = iter([100 * GIBIBYTE, 11 * GIBIBYTE, 9 * GIBIBYTE])
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(0, 0, next(free)))
    watching = watch(tmp_path)
    assert watching.exceeded() is None
    fate, words = watching.exceeded() or pytest.fail("nothing is told")
    assert fate is Outcome.DISK_FULL
    assert words.endswith("has 9.00 GiB left, less than the 10.0 GiB that must stay free")


def test_an_arm_without_a_limit_has_a_share_of_what_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "free_memory", lambda: 1000)
    child = subprocess.Popen(["sleep", "170"])
    try:
        fate, words = watch(tmp_path).exceeded() or pytest.fail("nothing is told")
    finally:
        child.kill()
        child.wait()
    assert (fate, words.endswith("of memory, and 800 B are its limit")) == (Outcome.OUT_OF_MEMORY, True)


def test_what_a_folder_takes_is_counted_with_all_below_it_and_without_what_links_lead_to(tmp_path):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    elsewhere.write_bytes(bytes(1 << 20))
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "file").write_bytes(bytes(1 << 16))
    (folder / "link").symlink_to(elsewhere)
    assert 1 << 16 <= folder_bytes(str(folder)) < 1 << 17
    assert folder_bytes(str(tmp_path / "deleted")) == 0
