"""A notebook as a script, and an edited script back in its notebook."""

from __future__ import annotations

import ast
import json

import pytest

from hasten.errors import Misconfigured
from hasten.scripts.running.notebook import place_in, script_of, with_script


def notebook(*cells: str) -> str:
    code = [
        {"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": [], "source": cell.splitlines(True)}
        for cell in cells
    ]
    text = {"cell_type": "markdown", "metadata": {}, "source": ["# Größe\n"]}
    return json.dumps({"cells": [text, *code], "metadata": {}, "nbformat": 4}, indent=1, ensure_ascii=False) + "\n"


def sources(text: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"][1:]]


CELLS = (
    "%matplotlib inline\nimport torch\n!pip install -q numpy",
    "%%time\nfor step in range(3):\n    %time print(step)\n\n",
    "x = 7\nx % 3\ntext = '''\n%d\n'''",
    "",
)


def test_code_cells_are_python_in_their_order():
    script = script_of(notebook(*CELLS), "train.ipynb")
    assert ast.unparse(ast.parse(script)).splitlines()[:3] == ["import torch", "for step in range(3):", "    pass"]
    assert "# IPython: !pip install -q numpy\n" in script
    assert "text = '''\n%d\n'''" in script


def test_an_unedited_script_gives_the_same_notebook():
    text = notebook(*CELLS)
    assert with_script(text, script_of(text, "train.ipynb"), "train.ipynb") == text


def test_an_edit_changes_its_cell_alone():
    text = notebook(*CELLS)
    script = script_of(text, "train.ipynb").replace("import torch\n", "import torch\n\ntorch.set_num_threads(1)\n")
    found = sources(with_script(text, script, "train.ipynb"))
    assert found[0] == "%matplotlib inline\nimport torch\n\ntorch.set_num_threads(1)\n!pip install -q numpy"
    assert found[1:] == [*CELLS[1:]]


@pytest.mark.parametrize("indent", [1, 2, "\t", None], ids=["one", "two", "tab", "in one line"])
@pytest.mark.parametrize("end", ["\n", ""], ids=["newline", "none"])
@pytest.mark.parametrize("ascii_only", [True, False], ids=["escapes", "characters"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_the_layout_of_a_notebooks_file_is_kept(indent, end, ascii_only, newline):
    cell = {"cell_type": "code", "metadata": {}, "source": ["x = 'é'"], "outputs": []}
    text = json.dumps({"cells": [cell], "metadata": {}}, indent=indent, ensure_ascii=ascii_only) + end
    text = text.replace("\n", newline)
    edited = with_script(text, script_of(text, "a.ipynb").replace("x =", "y ="), "a.ipynb")
    assert edited == text.replace("x =", "y =")


def test_lines_before_the_first_cell_are_put_into_it():
    text = notebook("x = 1")
    script = f"import torch\n{script_of(text, 'train.ipynb')}"
    assert sources(with_script(text, script, "train.ipynb")) == ["import torch\nx = 1"]


@pytest.mark.parametrize(
    ("cell", "what"), [("%%bash\nls", "%%bash"), ("files = !ls", "not Python"), ("model?", "not Python")]
)
def test_what_only_a_notebook_runs_is_refused_with_its_cell(cell, what):
    with pytest.raises(Misconfigured, match=what) as refused:
        script_of(notebook("x = 1", cell), "train.ipynb")
    assert refused.value.where == "train.ipynb, cell 3"


@pytest.mark.parametrize("text", ["", "[]", '{"cells": []}', '{"cells": [], "metadata": {}}'])
def test_another_file_is_no_notebook(text):
    with pytest.raises(Misconfigured):
        script_of(text, "train.ipynb")


def test_a_line_of_the_script_has_its_place_in_a_cell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.ipynb"
    path.write_text(notebook(*CELLS), encoding="utf-8")
    script = script_of(path.read_text(encoding="utf-8"), path.name).splitlines()
    assert place_in(str(path), script.index("import torch") + 1) == "train.ipynb:cell 2:2"
    assert place_in(str(path), script.index("x % 3") + 1) == "train.ipynb:cell 4:2"
    assert place_in(str(tmp_path / "train.py"), 7) == "train.py:7"
