"""A source file as rules see it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from hasten.doctor.reading.names.argument_values import Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Node, Scopes
from hasten.doctor.reading.names.value_origins import Origins
from hasten.doctor.reading.objects.data_loaders import Loader, Loaders
from hasten.doctor.reading.objects.device_moves import Devices
from hasten.doctor.reading.objects.optimizer_roles import Optimizers
from hasten.doctor.reading.objects.tensor_kinds import Tensors
from hasten.doctor.reading.steps.accumulated_values import AccumulatedValues
from hasten.doctor.reading.steps.accumulation_windows import Windows
from hasten.doctor.reading.steps.evaluation_loops import Evaluations
from hasten.doctor.reading.steps.optimizer_events import Updates
from hasten.doctor.reading.steps.scheduler_steps import Schedules
from hasten.doctor.reading.steps.training_steps import Training


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
        self.origins = Origins(self.names)

    @cached_property
    def tensors(self) -> Tensors:
        return Tensors(self.names, self.training, self.devices, self.origins)

    @cached_property
    def accumulated(self) -> AccumulatedValues:
        return AccumulatedValues(self.names, self.training)

    @cached_property
    def updates(self) -> Updates:
        return Updates(self.names, self.training, Optimizers(self.names, self.values))

    @cached_property
    def windows(self) -> Windows:
        return Windows(self.names, self.values, self.updates)

    @cached_property
    def schedules(self) -> Schedules:
        return Schedules(self.names, self.values, self.updates, self.windows)

    @cached_property
    def loading(self) -> Loaders:
        return Loaders(self.names, self.values, self.training, self.devices, self.origins)

    @cached_property
    def evaluations(self) -> Evaluations:
        return Evaluations(self.names, self.values, self.training, self.tensors, self.origins)

    @property
    def loaders(self) -> list[Loader]:
        return self.loading.all

    def all(self, kind: type[Node]) -> list[Node]:
        """In the order of the file."""
        return self.scopes.all(kind)

    def calls_to(self, *names: str) -> list[ast.Call]:
        """By their full names."""
        return [call for call in self.all(ast.Call) if self.names.qualified(call.func) in names]

    def methods(self, *names: str) -> list[ast.Call]:
        """Calls of methods of these names, on any object."""
        calls = self.all(ast.Call)
        return [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in names]

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
