"""Shared memory that killed processes have left goes; that of others stays."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hasten.checkpoint.folders import shared_segments
from hasten.checkpoint.folders.shared_segments import (
    forget_processes,
    note_this_process,
    remove_segments_noted_in,
)


@pytest.fixture
def memory(tmp_path, monkeypatch):
    place = tmp_path / "shm"
    place.mkdir()
    monkeypatch.setattr(shared_segments, "SHARED_MEMORY", place)
    return place


def dead() -> int:
    """The number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.trap(36)
def test_what_dead_processes_of_a_folder_left_goes_and_nothing_else(tmp_path, memory):
    gone, folder = dead(), tmp_path / "folder"
    folder.mkdir()
    note_this_process(folder)
    for name in (f"process-{gone}", "process-", "process-x", "process-²", f"process-{10**12}", "listener-1"):
        (folder / name).mkdir()
    names = {f"torch_{number}_1_0" for number in (os.getpid(), gone, f"{gone}0", 1)} | {f"torch_{gone}", f"x_{gone}_1"}
    for name in names:
        (memory / name).touch()
    remove_segments_noted_in(folder)
    assert {path.name for path in memory.iterdir()} == names - {f"torch_{gone}_1_0"}


def test_a_process_that_ended_well_is_forgotten(tmp_path):
    note_this_process(tmp_path)
    forget_processes(tmp_path, [os.getpid(), 1])
    assert not [*tmp_path.iterdir()]
