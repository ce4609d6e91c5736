"""Profiles in tests are short: none of them judges a time."""

import pytest

from hasten.doctor.profiling import run_profiler


@pytest.fixture(autouse=True)
def short_profiles(monkeypatch):
    monkeypatch.setattr(run_profiler, "ROUNDS", 4)
    monkeypatch.setattr(run_profiler, "WINDOW_SECONDS", 0.05)
