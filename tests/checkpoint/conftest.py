"""Where tests of storage lay down many folders."""

import os
import tempfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def memory():
    """A folder that no disk slows down, where the system has such; what is tested does not depend on it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def in_memory(memory):
    """One in it for each test."""
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)
