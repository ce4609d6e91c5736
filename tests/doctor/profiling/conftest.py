"""Looks in tests are short: none of them judges a time."""

import pytest

from hasten.doctor.profiling import profile_run


@pytest.fixture(autouse=True)
def short_looks(monkeypatch):
    monkeypatch.setattr(profile_run, "WINDOW_SECONDS", 0.05)
