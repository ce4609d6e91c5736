"""The documentation site: a reader gets to every page, and arguments of a docstring are a list. No site is built."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import build_docs

pytest.importorskip("mkdocs", reason="needs what `make site` installs")

import yaml

import argument_lists
import site_pages

CONFIG = yaml.safe_load((build_docs.DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))


def in_navigation(entries: Any = CONFIG["nav"]) -> Iterator[Path]:
    """The files that the navigation names, of its sections too."""
    if isinstance(entries, str):
        yield build_docs.DOCS / entries
    elif isinstance(entries, dict):
        yield from in_navigation([*entries.values()])
    else:
        for entry in entries:
            yield from in_navigation(entry)


def test_the_navigation_names_files_that_exist():
    assert [page for page in in_navigation() if not page.is_file()] == []


def test_every_page_is_in_the_navigation_or_one_link_from_it():
    listed = {*in_navigation()}
    reached = listed | {target for page in listed for target in site_pages.linked(page)}
    assert sorted({*build_docs.DOCS.rglob("*.md")} - reached) == []


def test_the_pages_of_a_list_are_below_it_in_its_order(tmp_path, monkeypatch):
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "README.md").write_text("[2](b.md), [1](a.md), [other](../other.md)")
    for name, heading in (("rules/a", "H1 a"), ("rules/b", "H2 b_c"), ("other", "other")):
        (tmp_path / f"{name}.md").write_text(f"<!-- generated -->\n\n# {heading}\n")
    monkeypatch.setattr(site_pages, "ROOT", tmp_path)
    assert site_pages.unfolded([{"Rules": "rules/README.md"}, {"Other": "other.md"}], tmp_path) == [
        {"Rules": ["rules/README.md", {"H2 b_c": "rules/b.md"}, {"H1 a": "rules/a.md"}]},
        {"Other": "other.md"},
    ]


def test_an_interval_and_a_figure_with_its_unit_stay_on_one_line():
    text = site_pages.unbroken("2 s, 1.5 (1–2) times, 3 steps, a – b, 5 %")
    assert text == "2&nbsp;s, 1.5 (1&NoBreak;–&NoBreak;2) times, 3 steps, a – b, 5&nbsp;%"


class TestArgumentLists:
    def test_a_line_about_a_parameter_begins_an_entry_and_its_further_lines_belong_to_it(self):
        docstring = "Train.\n\nepochs, steps: the length,\n    the shorter one.\nseed: of all.\n\nRaises JobError."
        lines = argument_lists.with_lists(docstring, {"epochs", "steps", "seed"}).splitlines()
        assert [*filter(None, lines)] == [
            "Train.",
            *("`epochs`, `steps`", ":   the length,", "    the shorter one."),
            *("`seed`", ":   of all."),
            "Raises JobError.",
        ]

    def test_text_after_an_entry_is_a_paragraph_of_its_own(self):
        assert argument_lists.with_lists("seed: of all.\nIt is 0.", {"seed"}) == "`seed`\n:   of all.\n\nIt is 0."

    def test_a_line_with_another_name_stays_text(self):
        docstring = "Note: this.\nseed, other: that."
        assert argument_lists.with_lists(docstring, {"seed"}) == docstring

    def test_a_class_has_the_names_of_its_fields_and_of_its_parameters(self):
        attribute = argument_lists.Attribute("loss")
        parameters = [SimpleNamespace(name="job"), SimpleNamespace(name="**settings")]
        documented = SimpleNamespace(parameters=parameters, members={"loss": attribute, "step": object()})
        assert argument_lists.names_of(documented) == {"job", "settings", "loss"}
