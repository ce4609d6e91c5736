"""The layers that a file makes: those of a Sequential in their order, and what the forward() of a class returns."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.names.name_resolution import Names, method, only_return
from hasten.doctor.reading.names.scopes import Function, Kind

_SEQUENTIAL = "torch.nn.Sequential"
_WRAP = frozenset(
    {"torch.nn.parallel.DataParallel", "torch.nn.parallel.DistributedDataParallel", "torch.compile",
     "torch.nn.SyncBatchNorm.convert_sync_batchnorm", "torch.distributed.fsdp.FullyShardedDataParallel"}
)  # fmt: skip
_DEEPEST = 8


class Layers:
    def __init__(self, names: Names) -> None:
        self._names = names

    def in_order(self, call: ast.Call) -> list[ast.expr]:
        """The layers that a Sequential is made of, as they are written; of one that is given by a star, none."""
        if len(call.args) == 1:
            match call.args[0]:
                case ast.Call(_, [ast.List(pairs) | ast.Tuple(pairs)]):  # OrderedDict([("name", layer), …])
                    return [each.elts[1] for each in pairs if isinstance(each, ast.Tuple) and len(each.elts) == 2]
        return call.args

    def made(self, node: ast.AST | None) -> ast.Call | None:
        """The call that makes a module, without what only wraps it."""
        making = self._names.making(node)
        for _ in range(_DEEPEST):
            if making is None or self._names.qualified(making.func) not in _WRAP or not making.args:
                return making
            making = self._names.making(making.args[0])
        return None

    def sequence(self, making: ast.Call) -> list[ast.expr] | None:
        """The layers of the Sequential that this call makes; of a class of the file that is one, too."""
        if self._names.qualified(making.func) == _SEQUENTIAL:
            return self.in_order(making)
        owner = self._names.class_named(making.func)
        init = method(owner, "__init__") if owner is not None and self.is_sequential(owner) else None
        supers = [each for each in ast.walk(init) if is_init_of_super(each)] if init is not None else []
        return self.in_order(supers[0]) if len(supers) == 1 and isinstance(supers[0], ast.Call) else None

    def is_sequential(self, owner: ast.ClassDef) -> bool:
        return any(self._names.qualified(base) == _SEQUENTIAL for base in owner.bases)

    def output(self, node: ast.expr, depth: int = 0) -> Iterator[ast.expr]:
        """The expression, and after it those that it comes from unchanged: through names, through functions of the
        file, and through the modules that are called, down to the layer that made it."""
        if depth > _DEEPEST:
            return
        yield node
        inner = self._source(node)
        if inner is not None:
            yield from self.output(inner, depth + 1)

    def _source(self, node: ast.expr) -> ast.expr | None:
        if isinstance(node, ast.Name):
            return self._of_name(node)
        if not isinstance(node, ast.Call):
            return None
        function = self._names.function(node)
        if function is None and isinstance(node.func, ast.Name) and node.func.id == "self":
            owner = self._names.class_of(node.func)
            function = method(owner, "forward") if owner is not None else None
        elif function is None:
            making = self.made(node.func)
            if making is None:
                return None
            layers = self.sequence(making)
            if layers is not None:
                return layers[-1] if layers and not isinstance(layers[-1], ast.Starred) else None
            owner = self._names.class_named(making.func)
            function = method(owner, "forward") if owner is not None else None
        return only_return(function) if isinstance(function, Function) else None

    def _of_name(self, node: ast.Name) -> ast.expr | None:
        bindings = self._names.bindings(node)
        if len(bindings) != 1:
            return None
        binding = bindings[0]
        if binding.kind is Kind.VALUE:
            return binding.source
        if binding.kind is Kind.PARAMETER:
            return self._names.given_to(binding.node)
        if binding.kind is Kind.PART and isinstance(binding.node, ast.Assign) and binding.source is not None:
            parts = [each.elts for each in self.output(binding.source) if isinstance(each, ast.Tuple)]
            if binding.number is not None and parts and binding.number < len(parts[0]):
                return parts[0][binding.number]
        return None


def is_init_of_super(node: ast.AST) -> bool:
    """`super().__init__(…)`"""
    match node:
        case ast.Call(ast.Attribute(ast.Call(ast.Name("super")), "__init__")):
            return True
        case _:
            return False
