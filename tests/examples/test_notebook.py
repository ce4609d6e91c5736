"""The notebook runs from the first cell to the last, and is stored without what it printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest

import hasten

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"
CODE = [each for each in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if each["cell_type"] == "code"]


def run_cells(folder: Path) -> dict[str, Any]:
    """The names that the cells define, run as a kernel runs them in a folder."""
    names: dict[str, Any] = {}
    for cell in CODE:
        text = "".join(cell["source"])
        magic, _, rest = text.partition("\n")
        if magic.startswith("%%writefile "):
            (folder / magic.split()[1]).write_text(rest, encoding="utf-8")
        else:
            exec(compile(text, cell["id"], "exec"), names)
    return names


def test_the_cells_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hasten.tune is replaced, because a search takes a minute."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "job", raising=False)
    monkeypatch.setattr(hasten, "tune", lambda name, seconds, output: hasten.make_plan())
    monkeypatch.setitem(matplotlib.rcParams, "backend", "agg")
    names = run_cells(tmp_path)
    sys.modules.pop("job")
    names["plt"].close(names["figure"])
    assert names["result"].results["accuracy"] > 0.85
    assert names["found"].results == names["result"].results
    training, validation = (line.get_xdata() for line in names["axes"].get_lines())
    assert len(validation) == 5
    assert training[-1] == validation[-1] == names["result"].steps


def test_no_output_is_stored() -> None:
    assert [cell["id"] for cell in CODE if cell["outputs"] or cell["execution_count"] is not None] == []
