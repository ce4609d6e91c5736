"""Which comments silence what: one that names codes silences no others, one that is not understood nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.doctor.lint.suppression import not_silenced
from hasten.facts.finding import Finding, Severity


@pytest.mark.parametrize(
    ("said", "silenced"),
    [
        ("", {"H205", "H206", "H303"}),
        (" # noqa: E501", {"H205", "H206", "H303"}),
        (" (on purpose)", {"H205", "H206", "H303"}),
        (", as it is meant [so]", {"H205", "H206", "H303"}),
        ("[h205 H206]", {"H205", "H206"}),
        ("[ H205 , ]", {"H205"}),
        (": [H3]", {"H303"}),
        ("[H205] as in H303", {"H205"}),
        ("[]", set()),
        ("[on purpose]", set()),
        ("[H205", set()),
        ("[H205]x", set()),
        (" H205", set()),
    ],
)
def test_codes_are_understood_in_brackets_and_what_is_not_understood_silences_nothing(tmp_path: Path, said, silenced):
    file = tmp_path / "train.py"
    file.write_text(f"x = 1\ntotal += loss  # hasten: ignore{said}\n")
    found = [
        Finding(code=code, rule="", severity=Severity.SLOW, message="", fix="", path=str(file), line=2)
        for code in ("H205", "H206", "H303")
    ]
    assert {each.code for each in found} - {each.code for each in not_silenced(found)} == silenced
