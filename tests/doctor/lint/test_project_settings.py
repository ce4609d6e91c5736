"""[tool.hasten] of the nearest pyproject.toml."""

from __future__ import annotations

import pytest

from hasten.doctor.lint.project_settings import Settings, by_project, settings_for
from hasten.errors import Misconfigured


def test_the_nearest_project_that_has_the_table_counts(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.hasten]\nignore = ["H3"]\nexclude = ["old/*"]\n')
    (inner / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert settings_for(inner / "train.py") == Settings(ignore=("H3",), exclude=("old/*",), folder=tmp_path)
    (inner / "pyproject.toml").write_text('[tool.hasten]\nselect = ["H201"]\n')
    assert settings_for(inner) == Settings(select=("H201",), folder=inner)


def test_each_file_belongs_to_its_nearest_project_and_to_none_that_excludes_it(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.hasten]\nexclude = ["vendored", "old/*"]\n')
    inner = tmp_path / "inner"
    files = [tmp_path / name for name in ("a.py", "vendored/deep/b.py", "old/c.py", "inner/d.py", "inner/vendored.py")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
    (inner / "pyproject.toml").write_text('[tool.hasten]\nignore = ["H303"]\n')
    found = by_project(files)
    assert [(settings.folder, of) for settings, of in found.items()] == [(tmp_path, files[:1]), (inner, files[3:])]


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ("[tool.hasten]\nselekt = []", 'there is no setting "selekt"'),
        ('[tool.hasten]\nselect = "H201"', '"select" is not a list of strings'),
        ("[tool.hasten]\nselect = [1]", '"select" is not a list of strings'),
        ("[tool]\nhasten = 3", "is not a table"),
        ("[tool.hasten", "cannot be read"),
        (f"{'a.' * 200_000}a = 1", "a key has more than 200 parts"),
    ],
    ids=["unknown", "no list", "no text", "no table", "no TOML", "dots"],
)
def test_a_wrong_setting_is_refused_with_its_file(tmp_path, table, what):
    file = tmp_path / "pyproject.toml"
    file.write_text(table)
    with pytest.raises(Misconfigured) as refused:
        settings_for(tmp_path)
    assert what in refused.value.what
    assert str(file) in refused.value.where
