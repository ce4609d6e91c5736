"""Which traps and which faults of the catalogue the tests of a file are tagged with."""

from __future__ import annotations

import ast

from shape.source import Source, called


def traps(source: Source) -> set[object]:
    """Numbers, by @pytest.mark.trap(7)."""
    return _tagged(source, "pytest.mark.trap")


def faults(source: Source) -> set[object]:
    """Names of rows, by @pytest.mark.fault("worker hangs")."""
    return _tagged(source, "pytest.mark.fault")


def _tagged(source: Source, mark: str) -> set[object]:
    """By decorator, as a parameter's mark, or for the whole module."""
    marked: list[ast.expr] = []
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower().startswith("test"):
            marked += node.decorator_list
        elif isinstance(node, ast.Assign) and any(_is_mark(target) for target in node.targets):
            marked.append(node.value)
    calls = [node for tree in marked for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {
        item.value
        for call in calls
        if called(source, call) == mark
        for item in call.args
        if isinstance(item, ast.Constant)
    }


def _is_mark(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "pytestmark"
