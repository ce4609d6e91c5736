"""Loading torch once for all arms of all tests, as one search does it for all of its own."""

import pytest

from hasten.tune.nursery import nursery


@pytest.fixture(autouse=True, scope="session")
def kept_nursery():
    """The one that is shared. A test that ends it puts another one in its place."""
    kept = [nursery()]
    yield kept
    kept[0].close()
