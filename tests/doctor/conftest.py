"""Looks in tests are short: none of them judges a time."""

import pytest

from hasten.doctor import observe


@pytest.fixture(autouse=True)
def short_looks(monkeypatch):
    monkeypatch.setattr(observe, "WINDOW_SECONDS", 0.05)
