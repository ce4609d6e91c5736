"""Which comments silence what: one that names codes silences no others, one that is not understood nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.doctor.lint.suppression import not_silenced
from hasten.facts.finding import Finding, Severity
from support.cli.commands import ran


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


@pytest.mark.parametrize(
    ("said", "silenced"),
    [
        ("", {"H205", "H206", "H303"}),
        (" # noqa: E501", {"H205", "H206", "H303"}),
        (" (on purpose)", {"H205", "H206", "H303"}),
        (" for epoch 2", {"H205", "H206", "H303"}),
        (" H205", {"H205"}),
        (": H205", {"H205"}),
        ("(H205)", {"H205"}),
        (" (h205, H303)", {"H205", "H303"}),
        (" H2 H303, as it is meant", {"H205", "H206", "H303"}),
        ("[H205 H206]", {"H205", "H206"}),
        ("[ H205 , ]", {"H205"}),
        (": [H205]", {"H205"}),
        ("[H205] as in H303", {"H205"}),
        ("[]", set()),
        ("[on purpose]", set()),
        ("[H205", set()),
        ("(E501)", set()),
        (" H205 and H2O5", {"H205"}),
        (" H205 H2O5", set()),
        (", as H205 is meant", set()),
    ],
)
def test_codes_are_understood_in_any_shape_and_what_is_not_is_told(tmp_path: Path, said, silenced):
    file = tmp_path / "train.py"
    file.write_text(f"x = 1\ntotal += loss  # hasten: ignore{said}\n")
    found = [
        Finding(code=code, rule="", severity=Severity.SLOW, message="", fix="", path=str(file), line=2)
        for code in ("H205", "H206", "H303")
    ]
    assert {each.code for each in found} - {each.code for each in not_silenced(found)} == silenced
    code, told, noted = ran(f"doctor {file} --format json")
    assert (code, told.strip(), f"{file}:2: this comment silences nothing" in noted) == (0, "[]", not silenced)
