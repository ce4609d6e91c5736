"""What the names in a file mean: imports and their aliases, plain assignments, attributes of `self`, local functions.

Nothing is executed. A name that could mean two things means nothing here: what a rule cannot know is not a finding.
Python's syntax tree serves, not a concrete one: it is some fifty times as quick to read and to resolve.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_DEEPEST = 20  # assignments to follow
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, *_COMPREHENSIONS)
_RETURN_THEMSELVES = frozenset({"to", "cuda", "cpu", "train", "eval", "float", "half", "double", "bfloat16"})
_MOVED = (
    (re.compile(r"^torch\.nn\.modules\.\w+\.(?=[A-Z])"), "torch.nn."),
    (re.compile(r"^torch\.optim\.(?!lr_scheduler)\w+\.(?=[A-Z])"), "torch.optim."),
    (re.compile(r"^torch\.utils\.data\.(dataloader|dataset|distributed|sampler)\.(?=[A-Z])"), "torch.utils.data."),
    (re.compile(r"^torch\.nn\.parallel\.(data_parallel|distributed)\.(?=[A-Z])"), "torch.nn.parallel."),
    (re.compile(r"^torch\.nn\.(?=DataParallel$)"), "torch.nn.parallel."),
    (re.compile(r"^torch\.autograd\.grad_mode\."), "torch."),
)
"""Where a class was written, and the name that it is known by."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One place that gives a name its meaning. imported: what an import brings. value: of a plain assignment."""

    node: ast.AST
    imported: str | None = None
    value: ast.expr | None = None


@dataclass(slots=True)
class Scope:
    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    outer: dict[str, Scope] = field(default_factory=dict)  # names that `global` and `nonlocal` send elsewhere


class Names:
    """Of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self._scopes: dict[ast.AST, Scope] = {}
        self._attributes: dict[ast.ClassDef, dict[str, list[ast.expr | None]]] = {}
        self.nodes: dict[type[ast.AST], list[ast.AST]] = {}
        self._read(tree)

    # ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def qualified(self, node: ast.AST | None, depth: int = 0) -> str | None:
        """The dotted name that an expression stands for, such as "torch.utils.data.DataLoader"; None where it is not
        known. A function or class of this file has the name ".name"."""
        if isinstance(node, ast.Attribute):
            base = self.qualified(node.value, depth)
            return None if base is None else _known_as(f"{base}.{node.attr}")
        if not isinstance(node, ast.Name) or depth > _DEEPEST:
            return None
        bindings = self.bindings(node)
        if not bindings:
            return f"builtins.{node.id}" if hasattr(builtins, node.id) else None
        found = {self._meaning(each, node.id, depth) for each in bindings}
        return found.pop() if len(found) == 1 else None

    def value(self, node: ast.AST | None) -> ast.expr | None:
        """What was assigned to a name or to an attribute of `self`, where that is one expression; None where not."""
        if isinstance(node, ast.Name):
            bindings = self.bindings(node)
            return bindings[0].value if len(bindings) == 1 else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
            owner = self.enclosing(node, ast.ClassDef)
            values = self._attributes.get(owner, {}).get(node.attr, []) if isinstance(owner, ast.ClassDef) else []
            return values[0] if len(values) == 1 else None
        return None

    def followed(self, node: ast.AST | None) -> ast.AST | None:
        """The expression itself, or what was assigned to it, as far as that can be followed."""
        for _ in range(_DEEPEST):
            value = self.value(node)
            if value is None:
                return node
            node = value
        return node

    def made_by(self, node: ast.AST | None) -> str | None:
        """The qualified name of what was called to make it: "torch.optim.Adam" for `Adam(…)`, and for a name that was
        assigned it, or that a function of this file returns."""
        return self.qualified(getattr(self.making(node), "func", None))

    def making(self, node: ast.AST | None) -> ast.Call | None:
        """The call that made it."""
        for _ in range(_DEEPEST):
            node = self.followed(node)
            if not isinstance(node, ast.Call):
                return None
            if isinstance(node.func, ast.Attribute) and node.func.attr in _RETURN_THEMSELVES:
                node = node.func.value
                continue
            returned = _only_return(self.function(node))
            if returned is None:
                return node
            node = returned
        return None

    def function(self, call: ast.Call) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function of this file, or the method of the same class, that is called."""
        if isinstance(call.func, ast.Name):
            bindings = self.bindings(call.func)
            node = bindings[0].node if len(bindings) == 1 else None
            return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
            owner = self.enclosing(call, ast.ClassDef)
            if call.func.value.id == "self" and isinstance(owner, ast.ClassDef):
                methods = [each for each in owner.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                found = [each for each in methods if each.name == call.func.attr]
                return found[0] if len(found) == 1 else None
        return None

    def bindings(self, name: ast.Name) -> list[Binding]:
        scope: Scope | None = self.scope(name)
        first = scope
        while scope is not None:
            if name.id in scope.outer:
                scope = scope.outer[name.id]
            visible = scope is first or not isinstance(scope.node, ast.ClassDef)
            if visible and name.id in scope.bindings:
                return scope.bindings[name.id]
            scope = scope.parent
        return []

    def scope(self, node: ast.AST) -> Scope:
        while node not in self._scopes:
            node = self.parents[node]
        return self._scopes[node]

    def enclosing(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        """The nearest node around it that is one of these kinds."""
        return next((each for each in self.around(node) if isinstance(each, kinds)), None)

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """All that it lies in, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, tree: ast.Module) -> None:
        scope = self._scopes[tree] = Scope(tree, None)
        waiting: list[tuple[ast.AST, Scope]] = [(tree, scope)]
        while waiting:
            node, scope = waiting.pop()
            self.nodes.setdefault(type(node), []).append(node)
            self._bind(node, scope)
            if isinstance(node, _SCOPES) and node is not tree:
                scope = self._scopes[node] = Scope(node, scope)
            for child in reversed([*ast.iter_child_nodes(node)]):
                self.parents[child] = node
                waiting.append((child, scope))
        for nodes in self.nodes.values():
            nodes.sort(key=_position)

    def _bind(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.Import(names):
                for alias in names:
                    top = alias.name if alias.asname else alias.name.partition(".")[0]
                    _add(scope, alias.asname or top, Binding(node, imported=top))
            case ast.ImportFrom(module, names, level):
                for alias in names:
                    _add(
                        scope, alias.asname or alias.name, Binding(node, imported=f"{'.' * level}{module}.{alias.name}")
                    )
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                _add(scope, node.name, Binding(node))
            case ast.Assign(targets, value):
                for target in targets:
                    self._bind_target(target, value, scope)
            case ast.AnnAssign(target, _, value):
                self._bind_target(target, value, scope)
            case ast.NamedExpr(target, value):
                self._bind_target(target, value, _around_comprehensions(scope))
            case ast.AugAssign(target) | ast.For(target) | ast.AsyncFor(target) | ast.comprehension(target):
                self._bind_target(target, None, scope)
            case ast.withitem(context, ast.expr() as target):
                self._bind_target(target, context if isinstance(target, ast.Name) else None, scope)
            case ast.ExceptHandler(_, str(name)):
                _add(scope, name, Binding(node))
            case ast.arg(name):
                _add(scope, name, Binding(node))
            case ast.Global(names) | ast.Nonlocal(names):
                outer = scope
                while outer.parent is not None and (isinstance(node, ast.Global) or outer is scope):
                    outer = outer.parent
                scope.outer |= dict.fromkeys(names, outer)
            case ast.MatchAs(_, str(name)) | ast.MatchStar(str(name)):
                _add(scope, name, Binding(node))
            case _:
                pass

    def _bind_target(self, target: ast.expr, value: ast.expr | None, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            _add(scope.outer.get(target.id, scope), target.id, Binding(target, value=value))
        elif isinstance(target, ast.Tuple | ast.List):
            values = (
                value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else None
            )
            for number, each in enumerate(target.elts):
                self._bind_target(each, values[number] if values else None, scope)
        elif isinstance(target, ast.Starred):
            self._bind_target(target.value, None, scope)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            owner = scope
            while owner.parent is not None and not isinstance(owner.node, ast.ClassDef):
                owner = owner.parent
            if isinstance(owner.node, ast.ClassDef):
                self._attributes.setdefault(owner.node, {}).setdefault(target.attr, []).append(value)

    def _meaning(self, binding: Binding, name: str, depth: int) -> str | None:
        if binding.imported is not None:
            return _known_as(binding.imported)
        if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return f".{name}"
        if isinstance(binding.value, ast.Name | ast.Attribute):
            return self.qualified(binding.value, depth + 1)
        return None


def _known_as(name: str) -> str:
    for pattern, short in _MOVED:
        name = pattern.sub(short, name)
    return name


def _add(scope: Scope, name: str, binding: Binding) -> None:
    scope.bindings.setdefault(name, []).append(binding)


def _around_comprehensions(scope: Scope) -> Scope:
    while scope.parent is not None and isinstance(
        scope.node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ):
        scope = scope.parent
    return scope


def _only_return(function: ast.FunctionDef | ast.AsyncFunctionDef | None) -> ast.expr | None:
    if function is None:
        return None
    returns = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
    return returns[0] if len(returns) == 1 else None


def _position(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
