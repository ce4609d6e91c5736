"""[tool.hasten] of the nearest pyproject.toml."""

from __future__ import annotations

import pytest

from hasten.doctor.settings import Settings, settings_for
from hasten.errors import Misconfigured


def test_the_nearest_project_that_has_the_table_counts(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.hasten]\nignore = ["H3"]\nexclude = ["old/*"]\n')
    (inner / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert settings_for(inner / "train.py") == Settings(ignore=("H3",), exclude=("old/*",))
    (inner / "pyproject.toml").write_text('[tool.hasten]\nselect = ["H201"]\n')
    assert settings_for(inner) == Settings(select=("H201",))


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ("[tool.hasten]\nselekt = []", 'there is no setting "selekt"'),
        ('[tool.hasten]\nselect = "H201"', '"select" is no list of texts'),
        ("[tool.hasten]\nselect = [1]", '"select" is no list of texts'),
        ("[tool]\nhasten = 3", "is no table"),
        ("[tool.hasten", "cannot be read"),
    ],
    ids=["unknown", "no list", "no text", "no table", "no TOML"],
)
def test_a_wrong_setting_is_told_with_its_file(tmp_path, table, what):
    file = tmp_path / "pyproject.toml"
    file.write_text(table)
    with pytest.raises(Misconfigured) as told:
        settings_for(tmp_path)
    assert what in told.value.what
    assert str(file) in told.value.where
