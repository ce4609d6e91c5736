"""Loading an example leaves nothing in the process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def modules_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The path and the modules that loading adds are removed at the end."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == EXAMPLES:
            del sys.modules[name]
