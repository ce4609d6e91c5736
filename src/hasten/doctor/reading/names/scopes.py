"""Which name is bound where in a file: one pass over Python's syntax tree. Nothing is executed."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar

Function = ast.FunctionDef
Loop = ast.For | ast.While
Position = tuple[int, int]  # line from 1, and bytes into it
Node = TypeVar("Node", bound=ast.AST)

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_ITERATE = frozenset(
    {"enumerate", "tqdm", "trange", "track", "iter", "islice", "cycle", "reversed", "log_every", "progress"}
)
_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, *COMPREHENSIONS)


class Kind(Enum):
    """How a name gets its meaning."""

    IMPORT = auto()
    DEFINITION = auto()  # of a function or class
    VALUE = auto()  # it is what `source` is
    PART = auto()  # one of several that `source` is unpacked to
    ITEM = auto()  # `source` is iterated over
    AUGMENTED = auto()  # `source` is added to it, or the like
    ENTERED = auto()  # with source as name
    PARAMETER = auto()
    ERROR = auto()  # except … as name


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One place that gives a name its meaning. since: where it takes effect. imported: the name that is imported.
    number: which part of its source it is, where no star comes before it."""

    kind: Kind
    node: ast.AST
    since: Position
    source: ast.expr | None = None
    imported: str = ""
    number: int | None = None


@dataclass(slots=True)
class Scope:
    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)  # in the order of the file
    outer: dict[str, Scope] = field(default_factory=dict)  # where `global` and `nonlocal` names are bound

    def add(self, name: str, binding: Binding) -> None:
        scope = self.outer.get(name, self)
        scope.bindings.setdefault(name, []).append(binding)


class Scopes:
    """attributes: what each class assigns to attributes of `self`, by name."""

    def __init__(self, tree: ast.Module) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self.children: dict[ast.AST, list[ast.AST]] = {}
        self.attributes: dict[ast.AST, dict[str, list[Binding]]] = {}
        self.module = Scope(tree, None)
        self._nodes: dict[type[ast.AST], list[ast.AST]] = {}
        self._of: dict[ast.AST, Scope] = {tree: self.module}
        self._read(tree)
        for nodes in self._nodes.values():
            nodes.sort(key=begin)

    def all(self, kind: type[Node]) -> list[Node]:
        """The nodes of a type, in the order of the file."""
        return self._nodes.get(kind, [])  # pyright: ignore[reportReturnType]

    def of(self, node: ast.AST) -> Scope:
        """The scope in which its names are looked up."""
        while node not in self._of:
            node = self.parents[node]
        return self._of[node]

    def _read(self, tree: ast.Module) -> None:
        waiting: list[tuple[ast.AST, Scope]] = [(tree, self.module)]
        while waiting:
            node, scope = waiting.pop()
            self._nodes.setdefault(type(node), []).append(node)
            self._bind(node, scope)
            inner = scope
            if isinstance(node, _SCOPES) and node is not tree:
                inner = self._of[node] = Scope(node, scope)
            self.children[node] = [*ast.iter_child_nodes(node)]
            for child in reversed(self.children[node]):
                self.parents[child] = node
                waiting.append((child, inner))

    def _bind(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.Import(names):
                for alias in names:
                    top = alias.name if alias.asname else alias.name.partition(".")[0]
                    scope.add(alias.asname or top, Binding(Kind.IMPORT, node, end(node), imported=top))
            case ast.ImportFrom(module, names, level):
                for alias in names:
                    imported = "." * level + (f"{module}." if module else "") + alias.name
                    scope.add(alias.asname or alias.name, Binding(Kind.IMPORT, node, end(node), imported=imported))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                scope.add(node.name, Binding(Kind.DEFINITION, node, begin(node)))
            case ast.Assign(targets, value):
                for target in targets:
                    self._bind_target(target, Binding(Kind.VALUE, node, end(node), value), scope)
            case ast.AnnAssign(target, _, ast.expr() as value) | ast.NamedExpr(target, value):
                self._bind_target(target, Binding(Kind.VALUE, node, end(node), value), scope)
            case ast.AugAssign(target, _, value):
                self._bind_target(target, Binding(Kind.AUGMENTED, node, end(node), value), scope)
            case ast.For(target, iterated) | ast.comprehension(target, iterated):
                self._bind_target(target, Binding(Kind.ITEM, node, begin(target), iterated), scope)
            case ast.withitem(context, ast.expr() as target):
                self._bind_target(target, Binding(Kind.ENTERED, node, end(target), context), scope)
            case ast.ExceptHandler(_, str(name)):
                scope.add(name, Binding(Kind.ERROR, node, begin(node)))
            case ast.arg(name):
                scope.add(name, Binding(Kind.PARAMETER, node, begin(node)))
            case ast.Global(names):
                scope.outer |= dict.fromkeys(names, self.module)
            case ast.Nonlocal(names):
                scope.outer |= dict.fromkeys(names, scope.parent or scope)
            case _:
                pass

    def _bind_target(self, target: ast.expr, binding: Binding, scope: Scope) -> None:
        match target:
            case ast.Name(name):
                scope.add(name, binding)
            case ast.Tuple(parts) | ast.List(parts):
                for number, each in enumerate(parts):
                    self._bind_target(each, _part(binding, parts, number), scope)
            case ast.Starred(value):
                self._bind_target(value, Binding(Kind.PART, binding.node, binding.since, binding.source), scope)
            case ast.Attribute(ast.Name("self"), name):
                owner: Scope | None = scope
                while owner is not None and not isinstance(owner.node, ast.ClassDef):
                    owner = owner.parent
                if owner is not None:
                    self.attributes.setdefault(owner.node, {}).setdefault(name, []).append(binding)
            case _:
                pass


def begin(node: ast.AST) -> Position:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def end(node: ast.AST) -> Position:
    return getattr(node, "end_lineno", None) or 0, getattr(node, "end_col_offset", None) or 0


def _part(binding: Binding, targets: list[ast.expr], number: int) -> Binding:
    """`a, b = c, d` gives each its own value; otherwise each is a part of the whole."""
    values = binding.source.elts if isinstance(binding.source, ast.Tuple | ast.List) else []
    plain = not any(isinstance(each, ast.Starred) for each in (*values, *targets))
    if binding.kind is Kind.VALUE and plain and len(values) == len(targets):
        return Binding(Kind.VALUE, binding.node, binding.since, values[number])
    if binding.kind is Kind.VALUE and plain:
        return Binding(Kind.PART, binding.node, binding.since, binding.source, number=number)
    kind = Kind.ITEM if binding.kind is Kind.ITEM else Kind.PART
    return Binding(kind, binding.node, binding.since, binding.source)


def iterated(node: ast.expr) -> ast.expr:
    """What a loop iterates over, without enumerate(), tqdm() and the like around it."""
    while isinstance(node, ast.Call) and node.args:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called not in _ITERATE:
            return node
        node = node.args[0]
    return node
