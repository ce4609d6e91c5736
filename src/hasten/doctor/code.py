"""A source file as rules see it: its calls under their full names, and what is trained in which loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TypeVar

from hasten.doctor.names import Names

Node = TypeVar("Node", bound=ast.AST)
Loop = ast.For | ast.While
_LOOPS = (ast.For, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_CONDITIONS = (ast.If, ast.IfExp, ast.ExceptHandler, ast.Match, *_FUNCTIONS)
_WITHOUT_GRADIENTS = frozenset({"torch.no_grad", "torch.inference_mode"})
_CALLS_DEEP = 4  # functions that call functions


class Code:
    """tree: of the whole file. Raises SyntaxError, RecursionError or MemoryError for what Python cannot read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.names = Names(self.tree)

    def all(self, kind: type[Node]) -> list[Node]:
        """In the order of the file."""
        return self.names.nodes.get(kind, [])  # pyright: ignore[reportReturnType]

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str | None]]:
        """With the full name of what is called."""
        return [(call, self.names.qualified(call.func)) for call in self.all(ast.Call)]

    def calls_to(self, *names: str) -> Iterator[ast.Call]:
        return (call for call, name in self.calls if name in names)

    def methods(self, *names: str) -> Iterator[ast.Call]:
        """Calls of methods of these names, of whatever object."""
        return (each for each in self.all(ast.Call) if isinstance(each.func, ast.Attribute) and each.func.attr in names)

    @cached_property
    def uses_accelerator(self) -> bool:
        """Whether the file sends anything to one. Where it does not, a read of a tensor waits for nothing."""
        moves = any(call.args or call.keywords for call in self.methods("to") if _names_device(call))
        words = any(isinstance(each.value, str) and each.value.startswith("cuda") for each in self.all(ast.Constant))
        return moves or words or any(True for _ in self.methods("cuda"))

    # ── training ────────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def backwards(self) -> list[ast.Call]:
        """Calls that compute gradients: loss.backward(), scaler.scale(loss).backward(), accelerator.backward(loss)."""
        return [*self.methods("backward", "manual_backward")]

    @cached_property
    def step_loops(self) -> list[Loop]:
        """Loops of which each turn is a step of training: the innermost around a backward pass, or around a call of a
        function that has one."""
        inner = {self.loop_of(call) for call in self.backwards}
        found = [loop for loop in inner if loop is not None]
        for call in self.all(ast.Call):
            loop = self.loop_of(call)
            if loop is not None and loop not in found and self._leads_to_backward(call, 0):
                found.append(loop)
        return sorted(found, key=lambda loop: loop.lineno)

    def loop_of(self, node: ast.AST) -> Loop | None:
        """The innermost loop around it, in the same function."""
        for each in self.names.around(node):
            if isinstance(each, _LOOPS):
                return each
            if isinstance(each, _FUNCTIONS):
                return None
        return None

    def differentiated(self, loop: Loop) -> set[str]:
        """The names that backward() is called on in the loop."""
        names = set[str]()
        for call in self.backwards:
            if loop in self.names.around(call) and isinstance(call.func, ast.Attribute):
                of = call.args[0] if call.args else call.func.value
                if isinstance(of, ast.Call) and of.args:  # scaler.scale(loss).backward()
                    of = of.args[0]
                names |= {each.id for each in ast.walk(of) if isinstance(each, ast.Name)}
        return names

    def _leads_to_backward(self, call: ast.Call, depth: int) -> bool:
        function = self.names.function(call)
        if function is None or depth > _CALLS_DEEP:
            return False
        calls = [each for each in ast.walk(function) if isinstance(each, ast.Call) and self.loop_of(each) is None]
        return any(each in self.backwards for each in calls) or any(
            self._leads_to_backward(each, depth + 1) for each in calls
        )

    def runs_every_turn(self, node: ast.AST, loop: Loop) -> bool:
        """Whether it is reached in each turn of the loop: in its body, and under no condition, no inner function, no
        `except`, nor after a `break`-like end. What lies under `no_grad` counts as evaluation."""
        inside: ast.AST = node
        for each in self.names.around(node):
            if each is loop:
                return inside in loop.body
            if isinstance(each, _CONDITIONS):
                return False
            if isinstance(each, ast.With) and self.is_without_gradients(each):
                return False
            inside = each
        return False

    def is_conditional(self, node: ast.AST) -> bool:
        """Whether it lies under a condition, in the same function or around it."""
        return self.names.enclosing(node, ast.If, ast.IfExp) is not None

    def is_without_gradients(self, block: ast.With) -> bool:
        return any(
            self.names.qualified(getattr(item.context_expr, "func", item.context_expr)) in _WITHOUT_GRADIENTS
            for item in block.items
        )


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """What is given for a parameter; None where nothing is."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is not None and position < len(call.args) and not has_stars(call):
        return call.args[position]
    return None


def has_stars(call: ast.Call) -> bool:
    """Whether arguments come that cannot be seen."""
    return any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords)


def _names_device(call: ast.Call) -> bool:
    texts = [ast.unparse(each) for each in (*call.args, *(keyword.value for keyword in call.keywords))]
    return any("device" in text or "cuda" in text for text in texts)
