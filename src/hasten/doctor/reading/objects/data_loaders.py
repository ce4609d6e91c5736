"""The loaders of a file: what each is given, what it loads, which loops read it, and where its batches go."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hasten.doctor.reading.names.argument_values import ABSENT, Unknown, Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Kind, Loop, iterated
from hasten.doctor.reading.names.value_origins import Origins, contents
from hasten.doctor.reading.objects.device_moves import Devices
from hasten.doctor.reading.objects.loaded_datasets import Datasets, Source
from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.steps.training_steps import Step, Training

LOADER = "torch.utils.data.DataLoader"
_POSITIONS = {"dataset": 0, "batch_size": 1, "shuffle": 2, "sampler": 3, "batch_sampler": 4, "num_workers": 5,
              "collate_fn": 6, "pin_memory": 7, "drop_last": 8}  # fmt: skip
_TAKEN_FROM_BATCHES = frozenset({"pop", "get", "items", "values", "view", "reshape", "squeeze", "unsqueeze", "flatten",
                                 "transpose", "permute", "detach"})  # fmt: skip
_SHOWN = frozenset({"builtins.zip", "builtins.list", "builtins.tuple", "builtins.next", "torch.autograd.Variable"})
MOVING = frozenset({"prepare", "setup_dataloaders"})  # return loaders that move their batches themselves
_TRAINERS = ("lightning.", "pytorch_lightning.", "lightning_fabric.")
_MOST = 200  # expressions on the way from one


@dataclass(slots=True, eq=False)
class Loader:
    """call: that makes it. steps: that compute gradients of its batches. is_fitted: a framework's loop trains on it.
    given_to: names of functions of other modules that return one that replaces it. moves: `.to(device)` and the like
    of its batches, to an accelerator. sources: what it may load. epochs: loops in which it is gone through again."""

    call: ast.Call
    values: Values
    steps: list[Step] = field(default_factory=list)
    is_fitted: bool = False
    given_to: set[str] = field(default_factory=set)
    moves: list[ast.Call] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    epochs: list[Loop] = field(default_factory=list)

    def argument(self, name: str) -> ast.expr | Unknown:
        return self.values.argument(self.call, name, _POSITIONS.get(name))

    def constant(self, name: str) -> Any:
        """The value given, ABSENT or HIDDEN."""
        return self.values.constant_argument(self.call, name, _POSITIONS.get(name))

    @property
    def is_trained_on(self) -> bool:
        return self.is_fitted or bool(self.steps)

    @property
    def in_workers(self) -> bool | None:
        """Whether other processes load its samples; None where that is not known."""
        count = self.constant("num_workers")
        if count is ABSENT:
            return False
        return count > 0 if isinstance(count, int) else None


class Loaders:
    """all: in the order of the file."""

    def __init__(self, names: Names, values: Values, training: Training, devices: Devices, origins: Origins) -> None:
        self._names, self._training, self._devices = names, training, devices
        self._origins = origins
        self._calls = names.scopes.all(ast.Call)
        self.all = [Loader(call, values) for call in self._calls if names.qualified(call.func) == LOADER]
        self._by_call = {loader.call: loader for loader in self.all}
        self._reads: dict[ast.AST, list[Loader]] = {}
        if self.all:
            self._fill(Datasets(names, values, origins))

    def made_by(self, node: ast.expr | None) -> list[Loader]:
        """All that it may be."""
        calls = self._origins.calls(node) if node is not None else []
        return [self._by_call[each] for each in calls if each in self._by_call]

    def _fill(self, datasets: Datasets) -> None:
        for node, read in self._found_reads():
            for loader in self.made_by(read):
                self._reads.setdefault(node, []).append(loader)
        steps = self._training_loops()
        turns = {each for step in self._training.steps for each in step.epochs}
        for loader in self.all:
            nodes = [node for node, loaders in self._reads.items() if loader in loaders]
            taken = [(node, step) for node in nodes if (step := self._step_of(node, steps)) is not None]
            loader.steps = [step for node, step in taken if not self._only_may_train(loader, node, step)]
            given = loader.argument("dataset")
            loader.sources = [] if isinstance(given, Unknown) else datasets.of(given)
            loader.epochs = self._epochs_of(loader, nodes, turns)
        self._find_frameworks()
        for call in self._calls:
            if self._devices.is_move(call) and isinstance(call.func, ast.Attribute):
                for loader in self.batch_of(call.func.value):
                    loader.moves.append(call)

    def _found_reads(self) -> Iterator[tuple[ast.AST, ast.expr]]:
        """What takes batches, and what it takes them from."""
        for node in (*self._names.scopes.all(ast.For), *self._names.scopes.all(ast.comprehension)):
            match iterated(node.iter):
                case ast.Call(ast.Name("zip"), given):
                    yield from ((node, iterated(each)) for each in given)
                case read:
                    yield node, read
        for call in self._calls:
            if self._names.qualified(call.func) == "builtins.next" and call.args:
                yield call, call.args[0]

    def _training_loops(self) -> dict[ast.AST, Step]:
        """Steps, and the loops around each: a batch may be taken in several steps."""
        found: dict[ast.AST, Step] = {step.node: step for step in self._training.steps}
        for step in self._training.steps:
            for each in step.epochs:
                found.setdefault(each, step)
        return found

    def _step_of(self, node: ast.AST, steps: dict[ast.AST, Step]) -> Step | None:
        if not isinstance(node, ast.Call):
            return steps.get(node)
        around = (self._names.enclosing(node, ast.For, ast.While), self._names.enclosing(node, ast.FunctionDef))
        nearest = [*(each for each in around if each is not None), *self._training.loops_around(node)]
        return next((steps[each] for each in nearest if each in steps), None)

    def _only_may_train(self, loader: Loader, node: ast.AST, step: Step) -> bool:
        """Whether the loop trains on one loader and evaluates on another, and this is the one in order."""
        if len(self._reads[node]) == 1:
            return False
        backwards = step.methods("backward", "manual_backward")
        if not backwards or not all(each.is_conditional for each in backwards):
            return False
        drawn = any(loader.argument(each) is not ABSENT for each in ("sampler", "batch_sampler"))
        return not drawn and loader.constant("shuffle") in {ABSENT, False}

    def _epochs_of(self, loader: Loader, reads: list[ast.AST], turns: set[Loop]) -> list[Loop]:
        """The loops around training in which it is gone through more than once."""
        made_in = {*self._training.loops_around(loader.call)}
        nodes = [each for each in reads if not isinstance(each, ast.Call)]
        around = [each for node in nodes for each in self._training.loops_around(node) if not _chooses(each, node)]
        return [each for each in dict.fromkeys(around) if each in turns - made_in and _runs_twice(each, loader)]

    def _find_frameworks(self) -> None:
        for call in self._calls:
            name, named = name_of(call.func), {each.arg: each.value for each in call.keywords}
            base = call.func.value if isinstance(call.func, ast.Attribute) else None
            if name == "fit" and (self._names.made_by(base) or "").startswith(_TRAINERS):
                trains = [each for word, each in named.items() if (word or "").startswith("train_dataloader")]
                self._fit(*call.args[1:2], *trains)
            elif self._gives_back(call):
                for each in (*call.args, *named.values()):
                    for loader in self.made_by(each):
                        loader.given_to.add(name)
        for function in self._names.scopes.all(ast.FunctionDef):
            owner = self._names.parents[function]
            if function.name == "train_dataloader" and isinstance(owner, ast.ClassDef):
                self._fit(*(each.value for each in ast.walk(function) if isinstance(each, ast.Return)))

    def _fit(self, *given: ast.expr | None) -> None:
        for loader in (loader for each in given for loader in self.made_by(each)):
            loader.is_fitted = True

    def _gives_back(self, call: ast.Call) -> bool:
        """`model, loader = engine.prepare(model, loader)`"""
        around = self._names.parents[call]
        if not isinstance(around, ast.Assign) or self._names.function(call) is not None:
            return False
        targets = {ast.unparse(each) for target in around.targets for each in ast.walk(target)}
        return any(ast.unparse(each) in targets for each in (*call.args, *(each.value for each in call.keywords)))

    def batch_of(self, node: ast.expr) -> list[Loader]:
        """The loaders of whose batches it is one, or a part of one that is still where the loader put it."""
        found = dict[Loader, None]()
        waiting, seen = [node], set[ast.expr]()
        while waiting and len(seen) < _MOST:
            here = waiting.pop()
            if here in seen:
                continue
            seen.add(here)
            match here:
                case ast.Name():
                    for binding in self._names.bindings(here):
                        found |= dict.fromkeys(self._reads.get(binding.node, []))
                        if binding.kind is Kind.PARAMETER:
                            waiting += self._names.seen_given_to(binding.node)
                        elif binding.source is not None and binding.kind is not Kind.AUGMENTED:
                            waiting.append(binding.source)
                case ast.Subscript(base) | ast.Attribute(base, "data") | ast.Starred(base):
                    waiting.append(base)
                case ast.ListComp(value) | ast.GeneratorExp(value) | ast.DictComp(_, value):
                    waiting.append(value)
                case ast.Call(ast.Attribute(base, method)) if method in _TAKEN_FROM_BATCHES:
                    waiting.append(base)
                case ast.Call():
                    found |= dict.fromkeys(self._reads.get(here, []))
                    if iterated(here) is not here or self._names.qualified(here.func) in _SHOWN:
                        waiting += here.args
        return [*found]

    def collates_to_device(self, loader: Loader) -> bool:
        """Whether its batches, or its samples, are moved before the loop gets them."""
        collate = loader.argument("collate_fn")
        bodies: list[ast.AST | None] = [each.owner for each in loader.sources]
        if isinstance(collate, ast.expr):
            bodies += [collate, self._names.function_named(collate)]
        calls = [each for body in bodies if body is not None
                 for each in contents(body, self._names) if isinstance(each, ast.Call)]  # fmt: skip
        placed = [each for each in calls if any(keyword.arg == "device" for keyword in each.keywords)]
        return bool(placed) or any(map(self._devices.is_move, calls))


def _runs_twice(loop: Loop, loader: Loader) -> bool:
    match None if isinstance(loop, ast.While) else iterated(loop.iter):
        case ast.Call(ast.Name("range"), [stop]):
            return loader.values.constant(stop) not in {0, 1}
        case _:
            return True


def _chooses(loop: Loop, read: ast.AST) -> bool:
    """Whether each turn reads another: `for phase in phases: for batch in loaders[phase]`."""
    if isinstance(loop, ast.While) or not isinstance(read, ast.For | ast.comprehension):
        return False
    chosen = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
    return any(isinstance(each, ast.Name) and each.id in chosen for each in ast.walk(iterated(read.iter)))
