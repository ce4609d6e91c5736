"""The loaders of a file: what each is given, what it loads, and which loops read it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from hasten.doctor.names import Names, method
from hasten.doctor.scopes import Kind
from hasten.doctor.training import Loop, Step, Training, iterated
from hasten.doctor.values import Unknown, Values

LOADER = "torch.utils.data.DataLoader"
_POSITIONS = {"dataset": 0, "batch_size": 1, "shuffle": 2, "sampler": 3, "batch_sampler": 4, "num_workers": 5,
              "collate_fn": 6, "pin_memory": 7, "drop_last": 8}  # fmt: skip
_WRAPPERS = frozenset({"torch.utils.data.Subset", "torch.utils.data.random_split", "torch.utils.data.ConcatDataset"})


@dataclass(slots=True)
class Loader:
    """call: that makes it. loops: that go through it. steps: those of them that train."""

    call: ast.Call
    values: Values
    names: Names
    loops: list[Loop] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def argument(self, name: str) -> ast.expr | Unknown:
        return self.values.argument(self.call, name, _POSITIONS.get(name))

    def constant(self, name: str) -> Any:
        """The value given, ABSENT or HIDDEN."""
        return self.values.constant_argument(self.call, name, _POSITIONS.get(name))

    @property
    def dataset(self) -> ast.AST | None:
        """The expression that makes its data set, without what only takes a part of one."""
        node = self.argument("dataset")
        if isinstance(node, Unknown):
            return None
        for _ in range(8):
            making = self.names.making(node)
            if making is None:
                return self.split(node)
            if self.names.qualified(making.func) not in _WRAPPERS or not making.args:
                return making
            node = making.args[0]
            if isinstance(node, ast.List | ast.Tuple) and node.elts:
                node = node.elts[0]
        return None

    def split(self, node: ast.AST | None) -> ast.AST | None:
        """`train, valid = random_split(dataset, …)`: what was split."""
        bindings = self.names.bindings(node) if isinstance(node, ast.Name) else []
        if len(bindings) != 1 or bindings[0].kind is not Kind.PART:
            return None
        source = bindings[0].source
        making = self.names.making(source)
        if making is None or self.names.qualified(making.func) not in _WRAPPERS or not making.args:
            return None
        return self.names.making(making.args[0])

    @property
    def dataset_class(self) -> ast.ClassDef | None:
        """Of this file."""
        making = self.dataset
        return self.names.class_named(making.func) if isinstance(making, ast.Call) else None

    @property
    def dataset_name(self) -> str:
        """The full name of what makes its data set, such as "torchvision.datasets.CIFAR10"; "" where unknown."""
        making = self.dataset
        return self.names.qualified(making.func) or "" if isinstance(making, ast.Call) else ""

    @property
    def getitem(self) -> ast.AST | None:
        owner = self.dataset_class
        return method(owner, "__getitem__") if owner is not None else None


class Loaders:
    """Of one file. all: in its order."""

    def __init__(self, names: Names, values: Values, training: Training) -> None:
        self._names = names
        self.all = [
            Loader(call, values, names)
            for call in names.scopes.nodes.get(ast.Call, [])
            if isinstance(call, ast.Call) and names.qualified(call.func) == LOADER
        ]
        by_call = {loader.call: loader for loader in self.all}
        if not by_call:
            return
        steps = {step.node: step for step in training.steps}
        for loop in (*names.scopes.nodes.get(ast.For, []), *names.scopes.nodes.get(ast.AsyncFor, [])):
            assert isinstance(loop, ast.For | ast.AsyncFor)
            loader = by_call.get(self._read_by(loop))  # pyright: ignore[reportArgumentType]
            if loader is not None:
                loader.loops.append(loop)
                loader.steps += [steps[loop]] if loop in steps else []

    def _read_by(self, loop: ast.For | ast.AsyncFor) -> ast.AST | None:
        node: ast.AST = iterated(loop.iter)
        for _ in range(4):
            making = self._names.making(node)
            if making is not None or not isinstance(node, ast.Name | ast.Subscript):
                return making
            node = node.value if isinstance(node, ast.Subscript) else node
            value = self._names.followed(node)
            if value is node or value is None:
                return None
            node = value
        return None
