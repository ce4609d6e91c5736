"""The layers that a file makes: those of a Sequential in their order, and what the forward() of a class returns."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.names.name_resolution import Names, method, only_return

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
        """The layers that a Sequential is made of, as they are written."""
        match call.args:
            case [ast.Call(_, [ast.List(pairs) | ast.Tuple(pairs)])]:  # OrderedDict([("name", layer), …])
                return [each.elts[1] for each in pairs if isinstance(each, ast.Tuple) and len(each.elts) == 2]
            case layers:
                return layers

    def _made(self, node: ast.AST) -> ast.Call | None:
        """The call that makes a module, without what only wraps it."""
        making = self._names.making(node)
        for _ in range(_DEEPEST):
            if making is None or self._names.qualified(making.func) not in _WRAP or not making.args:
                break
            making = self._names.making(making.args[0])
        return making

    def _sequence(self, making: ast.Call) -> list[ast.expr] | None:
        """The layers of the Sequential that this call makes; of a class of the file that is one, too."""
        if self._names.qualified(making.func) == _SEQUENTIAL:
            return self.in_order(making)
        owner = self._names.class_named(making.func)
        init = method(owner, "__init__") if owner is not None and self.is_sequential(owner) else None
        supers = [each for each in ast.walk(init) if isinstance(each, ast.Call)] if init is not None else []
        return next((self.in_order(each) for each in supers if is_init_of_super(each)), None)

    def is_sequential(self, owner: ast.ClassDef) -> bool:
        return any(self._names.qualified(base) == _SEQUENTIAL for base in owner.bases)

    def output(self, node: ast.expr) -> Iterator[ast.expr]:
        """The expression, and after it those that it comes from unchanged: through names, through functions of the
        file, and through the modules that are called, down to the layer that made it."""
        inner: ast.expr | None = node
        for _ in range(_DEEPEST):
            if inner is None:
                return
            yield inner
            inner = self._source(inner)

    def _source(self, node: ast.expr) -> ast.expr | None:
        if isinstance(node, ast.Name):
            return self._of_name(node)
        if not isinstance(node, ast.Call):
            return None
        function = self._names.function(node)
        making = self._made(node.func) if function is None else None
        layers = self._sequence(making) if making is not None else None
        if layers:
            return None if isinstance(layers[-1], ast.Starred) else layers[-1]
        owner = self._names.class_named(making.func) if making is not None else None
        if isinstance(node.func, ast.Name) and node.func.id == "self":
            owner = self._names.class_of(node.func)
        return only_return(function or (method(owner, "forward") if owner is not None else None))

    def _of_name(self, node: ast.Name) -> ast.expr | None:
        bindings = self._names.bindings(node)
        binding = bindings[0] if len(bindings) == 1 else None
        if binding is None or binding.number is None or not isinstance(binding.source, ast.Call):
            return self._names.source(binding) if binding is not None else None
        parts = next((each.elts for each in self.output(binding.source) if isinstance(each, ast.Tuple)), [])
        return parts[binding.number] if binding.number < len(parts) else None


def is_init_of_super(node: ast.AST) -> bool:
    """`super().__init__(…)`"""
    match node:
        case ast.Call(ast.Attribute(ast.Call(ast.Name("super")), "__init__")):
            return True
        case _:
            return False
