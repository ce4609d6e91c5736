"""What a file runs, in the order of time, from each place where running can begin: the file itself, and each function
that nothing in the file calls. And which object an expression stands for there, through the calls that led to it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hasten.doctor.reading.names.name_resolution import RETURN_THEMSELVES, Names, argument_for, only_return
from hasten.doctor.reading.names.scopes import Binding, Function, Kind, Loop, begin
from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.steps.training_steps import Around, Training

_DEEPEST = 12
_WRAP = frozenset(
    {"DataParallel", "DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "compile", "prepare",
     "setup", "prepare_model", "setup_module", "unwrap_model", "convert_sync_batchnorm", "script", "unwrap"}
)  # fmt: skip
_WRAPPED = frozenset({"module", "_orig_mod"})

Path = tuple[tuple[Function, ast.Call | None], ...]  # the functions that were called, and the calls
Identity = ast.AST | tuple[object, str]
"""An object: the call that makes it, a parameter of unknown value, an attribute of a class, or a text."""


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """node: a call, or a loop that begins."""

    node: ast.AST
    around: Around
    path: Path

    def loops(self) -> list[ast.AST]:
        """Around it, the innermost first."""
        return [each for each, _ in reversed(self.around) if isinstance(each, Loop)]


class Timelines:
    def __init__(self, names: Names, training: Training) -> None:
        self._names, self._training = names, training
        self._own: dict[tuple[ast.AST, Path], frozenset[Identity]] = {}

    def through(self, loops: Iterable[ast.AST]) -> list[list[Moment]]:
        """Those in which one of these loops may run."""
        wanted = self._functions_around(loops)
        found = [[*self._moments(self._names.scopes.module.node, ())]]
        reached = {function for moment in found[0] for function, _ in moment.path}
        called = {each for each in wanted if self._names.calls_of(each)}
        for function in sorted(wanted, key=lambda each: (each in called, begin(each))):
            if function not in reached:
                found.append([*self._moments(function, ((function, None),))])
                reached |= {inner for moment in found[-1] for inner, _ in moment.path}
        return found

    def _functions_around(self, nodes: Iterable[ast.AST]) -> set[Function]:
        """And those that call them."""
        found, waiting = set[Function](), [*nodes]
        while waiting:
            node = waiting.pop()
            for function in (node, *self._names.around(node)):
                if isinstance(function, Function) and function not in found:
                    found.add(function)
                    waiting += self._names.calls_of(function)
        return found

    def _moments(self, beginning: ast.AST, start: Path) -> Iterator[Moment]:
        path = start
        last: dict[int, ast.Call] = {}  # by the number of functions that it lies in
        first = tuple((function, "body") for function, _ in start)
        for ran in self._training.run(beginning):
            if not isinstance(ran.node, ast.Call | ast.For):
                continue
            inside = [*(each for each, _ in start), *(each for each, _ in ran.around if isinstance(each, Function))]
            common = 0
            while common < min(len(path), len(inside)) and path[common][0] is inside[common]:
                common += 1
            entered = ((inside[number], last.get(number)) for number in range(common, len(inside)))
            path = (*path[:common], *entered)
            if isinstance(ran.node, ast.Call):
                last[len(inside)] = ran.node
            yield Moment(ran.node, (*first, *ran.around), path)

    def own(self, node: ast.expr, path: Path) -> frozenset[Identity]:
        """The objects that it may be."""
        key = (node, path)
        if key not in self._own:
            self._own[key] = frozenset()  # of one that depends on itself
            self._own[key] = frozenset(self._find(node, path, 0))
        return self._own[key]

    def with_owners(self, node: ast.expr, path: Path) -> frozenset[Identity]:
        """And the objects that it is a part of: of `model.encoder`, `model`, too."""
        found = self.own(node, path)
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
            found |= self.own(node, path)
        return found

    def _find(self, node: ast.expr, path: Path, depth: int) -> Iterator[Identity]:
        if depth > _DEEPEST:
            return
        match node:
            case ast.Name("self" | "cls"):
                yield self._names.class_of(node) or ("self", "text")
            case ast.Name(name):
                bindings = self._names.bindings(node)
                for binding in bindings:
                    yield from self._of_binding(binding, name, path, depth)
                if not bindings:
                    yield name, "text"
            case ast.Attribute(base, name) if name in _WRAPPED:
                yield from self._find(base, path, depth + 1)
            case ast.Attribute(base, name):
                owner = self._names.class_of(base)
                yield (owner, name) if owner is not None else (ast.unparse(node), "text")
                for binding in self._names.attribute(owner, name):
                    yield from self._of_binding(binding, name, (), depth + 1)
            case ast.Call():
                yield from self._of_call(node, path, depth)
            case ast.IfExp(_, body, orelse):
                yield from self._find(body, path, depth + 1)
                yield from self._find(orelse, path, depth + 1)
            case _:
                yield node

    def _of_binding(self, binding: Binding, name: str, path: Path, depth: int) -> Iterator[Identity]:
        if binding.kind is Kind.VALUE and binding.source is not None:
            yield from self._find(binding.source, path, depth + 1)
        elif binding.kind is Kind.PARAMETER:
            yield from self._of_parameter(binding.node, path, depth)
        elif binding.kind is Kind.PART and binding.source is not None:
            passed = _passed_through(binding)
            yield from self._find(passed, path, depth + 1) if passed is not None else [(binding.node, name)]
        else:
            yield binding.node

    def _of_parameter(self, parameter: ast.AST, path: Path, depth: int) -> Iterator[Identity]:
        function = self._names.parents.get(self._names.parents[parameter])
        given, before = self._names.given_to(parameter), Path()
        for number, (each, call) in enumerate(path):
            if each is function and call is not None and self._names.function(call) is each:
                assert isinstance(parameter, ast.arg)
                inner = argument_for(parameter, each, call)
                given, before = (inner, path[:number]) if inner is not None else (given, before)
        yield from self._find(given, before, depth + 1) if given is not None else [parameter]

    def _of_call(self, call: ast.Call, path: Path, depth: int) -> Iterator[Identity]:
        function, name = self._names.function(call), name_of(call.func)
        returned = only_return(function)
        if isinstance(call.func, ast.Attribute) and name in RETURN_THEMSELVES:
            yield from self._find(call.func.value, path, depth + 1)
        elif name in _WRAP and call.args and function is None:
            yield from self._find(call.args[0], path, depth + 1)
        elif function is None or returned is None or any(each is function for each, _ in path):
            yield call
        else:
            for each in self._find(returned, (*path, (function, call)), depth + 1):
                made_there = isinstance(each, ast.AST) and function in self._names.around(each)
                yield call if made_there else each


def _passed_through(binding: Binding) -> ast.expr | None:
    """`model, optimizer = accelerator.prepare(model, optimizer)`: what was given in its place."""
    match binding.source, binding.node:
        case ast.Call(ast.Attribute(_, called), given), ast.Assign([ast.Tuple(targets)]) if called in _WRAP:
            return given[binding.number] if binding.number is not None and len(given) == len(targets) else None
        case _:
            return None
