"""The training steps of a file: what runs in each, in which order, and the loops over epochs around them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import COMPREHENSIONS, Function, Loop, begin

Around = tuple[tuple[ast.AST, str], ...]
Called = tuple[Function, ...]
_CALLS_DEEP = 4  # functions that call functions
_MOST_RUN = 20_000  # nodes of one step: nobody writes more by hand
_BACKWARD = frozenset({"backward", "manual_backward"})
_WITHOUT_GRADIENTS = frozenset({"torch.no_grad", "torch.inference_mode"})
_STEPS_OF_FRAMEWORKS = {"training_step": ("Module",), "compute_loss": ("Trainer", "LightningModule")}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """A node that runs. around: what it lies in, the outermost first, through the functions that are called, each with
    the branch, "body" or "orelse"."""

    node: ast.AST
    around: Around

    @property
    def is_conditional(self) -> bool:
        """Whether a turn may skip it."""
        kinds = (ast.If, ast.IfExp, ast.ExceptHandler, ast.While, ast.BoolOp)
        return any(isinstance(each, kinds) for each, _ in self.around)

    @property
    def is_repeated(self) -> bool:
        return any(isinstance(each, (Loop, *COMPREHENSIONS)) for each, _ in self.around)


class Step:
    """What computes gradients once: a turn of a loop, or a function that a framework calls for each batch."""

    def __init__(self, node: Loop | Function, training: Training) -> None:
        self.node = node
        self._training = training

    @cached_property
    def ran(self) -> list[Ran]:
        """All that runs in it, in order: the parts of an expression come before it."""
        return self._training.run(self.node)

    @cached_property
    def every_turn(self) -> list[ast.AST]:
        """What runs in each turn, under no condition, with gradients."""
        without = self._training.is_without_gradients
        return [each.node for each in self.ran if not each.is_conditional and not without(each.around)]

    @cached_property
    def once_a_turn(self) -> list[ast.AST]:
        """That, and what runs in each turn without gradients outside a loop of its own: metrics, but no evaluation."""
        with_gradients = set(self.every_turn)
        return [
            each.node
            for each in self.ran
            if each.node in with_gradients or not (each.is_conditional or each.is_repeated)
        ]

    def methods(self, *names: str) -> list[Ran]:
        """Calls of methods of these names, on any object."""
        return [each for each in self.ran if _method(each.node) in names]

    @cached_property
    def updates(self) -> bool:
        """Whether parameters visibly change in it: by an optimizer, or by the framework that calls it."""
        return bool(self.methods("step")) or isinstance(self.node, Function)

    @cached_property
    def epochs(self) -> list[Loop]:
        """The loops around it, the nearest first, through the functions that call it."""
        return list(dict.fromkeys(self._training.loops_around(self.node)))


class Training:
    def __init__(self, names: Names) -> None:
        self._names = names
        self._ran: dict[ast.AST, list[Ran]] = {}

    @cached_property
    def backwards(self) -> list[ast.Call]:
        """Calls that compute gradients: loss.backward(), scaler.scale(loss).backward(), accelerator.backward(loss)."""
        return [each for each in self._names.scopes.all(ast.Call) if _method(each) in _BACKWARD]

    @cached_property
    def steps(self) -> list[Step]:
        """In the order of the file."""
        found = [node for call in self.backwards for node in self._steps_of(call, 0)]
        found += filter(self._is_step_of_framework, self._names.scopes.all(ast.FunctionDef))
        return [Step(node, self) for node in sorted(dict.fromkeys(found), key=begin)]

    def called_every_turn(self) -> Iterator[tuple[Step, ast.Call]]:
        """What each turn of a step calls, with gradients or without, under no condition except that there is a
        device."""
        seen = set[ast.AST]()
        for step in self.steps:
            for each in step.ran:
                asked = tuple(part for part in each.around if not self._asks_for_device(*part))
                conditional = Ran(each.node, asked).is_conditional
                if isinstance(each.node, ast.Call) and each.node not in seen and not conditional:
                    seen.add(each.node)
                    yield step, each.node

    def _asks_for_device(self, node: ast.AST, branch: str) -> bool:
        """`if torch.cuda.is_available():`, and `if device.type == "cuda":`: the same in every turn."""
        match node, branch:
            case ast.If(ast.Call(function)), "body":
                return (self._names.qualified(function) or "").endswith(".is_available")
            case ast.If(ast.Compare(_, [ast.Eq()], [ast.Constant(str(kind))])), "body":
                return kind.startswith("cuda")
            case _:
                return False

    def _steps_of(self, call: ast.AST, depth: int) -> list[Loop | Function]:
        loop = next(self._loops_in_function(call), None)
        if loop is not None:
            return [loop]
        function = self._names.enclosing(call, *_FUNCTIONS)
        if not isinstance(function, Function) or depth > _CALLS_DEEP:
            return []
        calls = self._outer_calls(function)
        loops = [loop for each in calls for loop in self._steps_of(each, depth + 1)]
        is_passed_on = any(self._names.function(each) is not function for each in calls)
        if loops or not any(_method(each) == "step" for each in ast.walk(function)) or (calls and not is_passed_on):
            return loops
        return [function]  # other code calls it, or a framework that it is passed to

    def _outer_calls(self, function: Function) -> list[ast.Call]:
        """Without recursive ones."""
        return [each for each in self._names.calls_of(function) if function not in self._names.around(each)]

    def _is_step_of_framework(self, function: Function) -> bool:
        """`training_step` of Lightning, `compute_loss` of a Trainer."""
        owner = self._names.parents[function]
        endings = _STEPS_OF_FRAMEWORKS.get(function.name, ())
        return isinstance(owner, ast.ClassDef) and any(ast.unparse(base).endswith(endings) for base in owner.bases)

    def _loops_in_function(self, node: ast.AST) -> Iterator[Loop]:
        """Those around it, the innermost first."""
        inside = node
        for each in self._names.around(node):
            if isinstance(each, Loop) and inside in each.body:
                yield each
            if isinstance(each, _FUNCTIONS):
                return
            inside = each

    def loops_around(self, node: ast.AST, depth: int = 0) -> Iterator[Loop]:
        """Those of its function, and those around the calls of that."""
        yield from self._loops_in_function(node)
        function = node if isinstance(node, Function) else self._names.enclosing(node, *_FUNCTIONS)
        if isinstance(function, Function) and depth <= _CALLS_DEEP:
            for call in self._outer_calls(function):
                yield from self.loops_around(call, depth + 1)

    def runs_once(self, node: ast.AST, depth: int = 0) -> bool:
        """Whether it is seen to lie in no loop: at module level, or in functions that are called from there."""
        function = self._names.enclosing(node, *_FUNCTIONS)
        if depth > _CALLS_DEEP or next(self.loops_around(node), None) is not None:
            return False
        calls = self._outer_calls(function) if isinstance(function, Function) else []
        return function is None or (bool(calls) and all(self.runs_once(each, depth + 1) for each in calls))

    def is_without_gradients(self, around: Around) -> bool:
        return any(self._switches_gradients_off(each) for each, _ in around)

    def runs_without_gradients(self, node: ast.AST) -> bool:
        """Whether it lies in a block, or in a function, that switches gradients off."""
        return any(self._switches_gradients_off(each) for each in self._names.around(node))

    def _switches_gradients_off(self, node: ast.AST) -> bool:
        entered = [item.context_expr for item in node.items] if isinstance(node, ast.With) else []
        return any(map(self._switches_off, node.decorator_list if isinstance(node, Function) else entered))

    def _switches_off(self, node: ast.expr) -> bool:
        called = node.func if isinstance(node, ast.Call) else node
        name = self._names.qualified(called)
        if name == "torch.set_grad_enabled" and isinstance(node, ast.Call) and node.args:
            return not (isinstance(node.args[0], ast.Constant) and node.args[0].value is True)
        return name in _WITHOUT_GRADIENTS

    def run(self, node: ast.AST) -> list[Ran]:
        """What runs in a loop, a function, the file or an expression, in order, with the functions of the file that it
        calls."""
        if node not in self._ran:
            body = [node] if isinstance(node, ast.expr) else getattr(node, "body", [])
            self._ran[node] = []
            self._add_all(body, (), (), self._ran[node])
        return self._ran[node]

    def _add_all(self, body: Sequence[ast.AST], around: Around, called: Called, ran: list[Ran]) -> None:
        for each in body:
            if len(ran) >= _MOST_RUN:
                return
            self._add(each, around, called, ran)
            if isinstance(each, ast.If) and _leaves_now_and_then(each):
                around = (*around, (each, "orelse"))

    def _add(self, node: ast.AST, around: Around, called: Called, ran: list[Ran]) -> None:
        inside = (*around, (node, "body"))
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
                return
            case ast.If(test, body, orelse) | ast.IfExp(test, body, orelse):
                self._add(test, around, called, ran)
                self._add_all(_listed(body), inside, called, ran)
                self._add_all(_listed(orelse), (*around, (node, "orelse")), called, ran)
            case ast.For(target, iterated, body, orelse):
                self._add_all([iterated, target], around, called, ran)
                ran.append(Ran(node, around))
                self._add_all([*body, *orelse], inside, called, ran)
            case ast.While(_, body, orelse):
                self._add_all([*body, *orelse], inside, called, ran)
            case ast.With(items, body):
                self._add_all(items, around, called, ran)
                ran.append(Ran(node, around))
                self._add_all(body, inside, called, ran)
            case ast.ExceptHandler(_, _, body):
                self._add_all(body, inside, called, ran)
            case _:
                inner = inside if isinstance(node, (*COMPREHENSIONS, ast.BoolOp)) else around
                for child in self._names.scopes.children[node]:
                    self._add(child, inner, called, ran)
                ran.append(Ran(node, around))
                if isinstance(node, ast.Call):
                    self._add_called(node, around, called, ran)

    def _add_called(self, call: ast.Call, around: Around, called: Called, ran: list[Ran]) -> None:
        """What the functions of the file do that it calls, or that it passes on, as a closure is to `step`."""
        passed = [self._names.function_named(each) for each in call.args if isinstance(each, ast.Name | ast.Attribute)]
        for function in (*passed, self._names.function(call)):
            if function is not None and function not in called and len(called) < _CALLS_DEEP:
                self._add_all(function.body, (*around, (function, "body")), (*called, function), ran)


def _listed(body: Sequence[ast.AST] | ast.AST) -> Sequence[ast.AST]:
    return [body] if isinstance(body, ast.AST) else body


def _method(node: ast.AST) -> str:
    """The name of the method that it calls; "" where it calls none."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def _leaves_now_and_then(condition: ast.If) -> bool:
    """`if step % 100: continue`: what follows is not reached in every turn."""
    leaves = condition.body and isinstance(condition.body[-1], ast.Continue | ast.Return | ast.Break)
    return bool(leaves) and any(isinstance(each, ast.Mod) for each in ast.walk(condition.test))
