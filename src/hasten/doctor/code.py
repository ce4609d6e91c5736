"""A source file as rules see it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TypeVar

from hasten.doctor.devices import Devices
from hasten.doctor.loaders import Loader, Loaders
from hasten.doctor.names import Names
from hasten.doctor.scopes import Scopes
from hasten.doctor.tensors import Tensors
from hasten.doctor.training import Training
from hasten.doctor.values import Values

Node = TypeVar("Node", bound=ast.AST)


class Code:
    """text: of a whole file. Raises SyntaxError, ValueError, RecursionError or MemoryError for what Python cannot
    read."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.scopes = Scopes(self.tree)
        self.names = Names(self.scopes)
        self.values = Values(self.names)
        self.devices = Devices(self.names, self.values)
        self.training = Training(self.names)

    @cached_property
    def tensors(self) -> Tensors:
        return Tensors(self.names, self.training, self.devices)

    @cached_property
    def loaders(self) -> list[Loader]:
        return Loaders(self.names, self.values, self.training).all

    def all(self, kind: type[Node]) -> list[Node]:
        """In the order of the file."""
        return self.scopes.nodes.get(kind, [])  # pyright: ignore[reportReturnType]

    @cached_property
    def _calls(self) -> dict[str, list[ast.Call]]:
        found: dict[str, list[ast.Call]] = {}
        for call in self.all(ast.Call):
            found.setdefault(self.names.qualified(call.func) or "", []).append(call)
        return found

    @cached_property
    def _methods(self) -> dict[str, list[ast.Call]]:
        found: dict[str, list[ast.Call]] = {}
        for call in self.all(ast.Call):
            if isinstance(call.func, ast.Attribute):
                found.setdefault(call.func.attr, []).append(call)
        return found

    def calls_to(self, *names: str) -> Iterator[ast.Call]:
        """By their full names."""
        return (call for name in names for call in self._calls.get(name, []))

    def methods(self, *names: str) -> Iterator[ast.Call]:
        """Calls of methods of these names, of whatever object."""
        return (call for name in names for call in self._methods.get(name, []))

    def assignments_to(self, *names: str) -> Iterator[tuple[ast.Assign, ast.expr]]:
        """`torch.backends.cudnn.benchmark = …`: by the full name, with what is assigned."""
        for node in self.all(ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and self.names.qualified(target) in names:
                    yield node, node.value

    def is_conditional(self, node: ast.AST) -> bool:
        """Whether it lies under a condition, in the same function or around it. `if __name__ == "__main__"` is none."""
        return any(
            isinstance(each, ast.If | ast.IfExp | ast.ExceptHandler | ast.While) and not is_main(each)
            for each in self.names.around(node)
        )


def is_main(node: ast.AST) -> bool:
    """`if __name__ == "__main__":`"""
    return isinstance(node, ast.If) and any(
        isinstance(each, ast.Name) and each.id == "__name__" for each in ast.walk(node.test)
    )
