"""Which comments silence what: a bracket that is not understood silences nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.doctor.suppression import not_silenced
from hasten.facts.finding import Finding, Severity


@pytest.mark.parametrize(
    ("said", "silenced"),
    [
        ("# hasten: ignore", True),
        ("# hasten: ignore, as it is meant [so]", True),
        ("# hasten: ignore[H205] [so]", True),
        ("# hasten: ignore[H205", False),
        ("# hasten: ignore [ H205, ", False),
        ("# hasten: ignore[H205]x", False),
    ],
)
def test_a_bracket_that_is_not_closed_silences_nothing(tmp_path: Path, said, silenced):
    file = tmp_path / "train.py"
    file.write_text(f"total += loss  {said}\n")
    found = Finding(code="H205", rule="", severity=Severity.SLOW, message="", fix="", path=str(file), line=1)
    assert not_silenced([found]) == ([] if silenced else [found])
