"""Arguments by which a safe call would run what a file says. Calls that are never safe, connections to the network and
clocks that can be set are refused by ruff: see banned-api in pyproject.toml."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shape.source import Fault, Source, called, dotted

MUST_BE = {"weights_only": True, "allow_pickle": False}


def check_arguments(source: Source) -> Iterator[Fault]:
    """No argument lets a file run, and no error is suppressed whose class nobody has named."""
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        if called(source, node) == "contextlib.suppress" and any(_is_broad(source, each) for each in node.args):
            yield Fault(source, node.lineno, "suppresses every error; name the one that is expected")
        if called(source, node) == "torch.load" and all(keyword.arg != "weights_only" for keyword in node.keywords):
            yield Fault(source, node.lineno, "weights_only=True is missing")
        for keyword in node.keywords:
            safe = MUST_BE.get(keyword.arg or "")
            if safe is not None and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is safe):
                yield Fault(source, node.lineno, f"{keyword.arg} must be {safe}: else what the file says runs")


def _is_broad(source: Source, node: ast.expr) -> bool:
    return dotted(source, node) in ("Exception", "BaseException")
