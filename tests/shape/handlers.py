"""No signal handler raises, and no test sleeps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shape.source import Fault, Source, called


def check_handlers(source: Source) -> Iterator[Fault]:
    """No signal handler raises, nor what it calls in its file: the error could surface in any line of any library."""
    functions: dict[str, list[ast.FunctionDef]] = {}
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, []).append(node)
    waiting = [name for node in source.nodes for name in _handlers(source, node)]
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for node in [each for function in functions.get(name, []) for each in _own_nodes(function)]:
            if isinstance(node, ast.Raise):
                yield Fault(source, node.lineno, f"{name} is, or serves, a signal handler; set a flag or wake a wait")
            elif isinstance(node, ast.Call):
                waiting.append(_last_name(node.func))


def _handlers(source: Source, node: ast.AST) -> Iterator[str]:
    """The names of the functions that a call installs: by signal.signal, or by what the package has for it."""
    if not isinstance(node, ast.Call):
        return
    if called(source, node) not in ("signal.signal", "hasten.stop_signals.listening"):
        return
    for given in [*node.args[1:], *(keyword.value for keyword in node.keywords)]:
        for each in ast.walk(given):  # a name, a method, a lambda that calls it, a partial of it
            if isinstance(each, ast.Name | ast.Attribute):
                yield _last_name(each)


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Without those of the functions that are defined inside."""
    waiting = [*function.body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef):
            waiting += ast.iter_child_nodes(node)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def check_sleeps(source: Source) -> Iterator[Fault]:
    """A test waits for what it needs, never for a time."""
    for node in source.nodes if "sleep" in source.text else ():
        if isinstance(node, ast.Call) and called(source, node) in ("time.sleep", "asyncio.sleep"):
            yield Fault(source, node.lineno, "sleeps; wait for the event itself")
