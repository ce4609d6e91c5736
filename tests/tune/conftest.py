"""Loading torch once for all arms of all tests, as one search does it for all of its own; and what tests plant."""

import pytest

from hasten.tune.nursery import nursery


@pytest.fixture(autouse=True, scope="session")
def kept_nursery():
    """The one that is shared. A test that ends it puts another one in its place."""
    kept = [nursery()]
    yield kept
    kept[0].close()


@pytest.fixture
def plant(monkeypatch):
    """What does harm, and what fails: see joint_jobs.py."""

    def planted(harmful: str = "", failing: str = "") -> None:
        monkeypatch.setenv("HASTEN_TEST_HARMFUL", harmful)
        monkeypatch.setenv("HASTEN_TEST_FAILING", failing)

    return planted
