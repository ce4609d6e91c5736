"""Profiles in tests are short: none of them judges a time."""

import pytest

from hasten.doctor.profiling import run_profiler


@pytest.fixture(autouse=True, scope="module")
def short_profiles():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_profiler, "ROUNDS", 3)
        patch.setattr(run_profiler, "WINDOW_SECONDS", 0.03)
        yield
