"""Where a file computes: what it sends to an accelerator."""

from __future__ import annotations

import ast
from functools import cached_property

from hasten.doctor.reading.names.argument_values import Values
from hasten.doctor.reading.names.name_resolution import Names

_ACCELERATORS = ("cuda", "mps", "xpu", "hip", "gpu")
_DEVICE_NAMES = frozenset({"rank", "local_rank", "gpu", "gpu_id", "dev", "device_id"})
_HAVE_A_DEVICE = frozenset({"self", "args", "cfg", "config", "opt", "accelerator", "fabric"})
_PLACED_BY = frozenset({"accelerate.Accelerator", "transformers.Trainer", "transformers.Seq2SeqTrainer"})
_TRAINERS = frozenset({"lightning.Trainer", "pytorch_lightning.Trainer", "lightning.pytorch.Trainer"})
_INDICES = frozenset({"torch.accelerator.current_accelerator", "torch.cuda.current_device", "builtins.int",
                      "torch.distributed.get_rank", "torch.accelerator.current_device_index"})  # fmt: skip
"""What they return names an accelerator, where it is used as a device: a processor has no number."""


class Devices:
    def __init__(self, names: Names, values: Values) -> None:
        self._names, self._values = names, values

    @cached_property
    def accelerated(self) -> bool:
        """Whether it sends anything to an accelerator. Where it does not, a read of a tensor waits for nothing."""
        return any(self.is_move(call) or self._places(call) for call in self._names.scopes.all(ast.Call))

    def is_move(self, call: ast.Call) -> bool:
        """Whether it is `x.cuda()`, or `x.to(…)` of what is, or may be at run time, an accelerator."""
        if not isinstance(call.func, ast.Attribute):
            return False
        if call.func.attr == "cuda":
            return not (self._names.qualified(call.func) or "").startswith("torch.")
        return call.func.attr == "to" and self.is_accelerator(self.target(call))

    def is_move_to_some_device(self, call: ast.Call) -> bool:
        """Whether it is `x.cuda()`, or `x.to(…)` of what is called a device, wherever that is."""
        target = self.target(call)
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        is_to = isinstance(call.func, ast.Attribute) and call.func.attr == "to"
        return self.is_move(call) or (is_to and (name.endswith("device") or name in _DEVICE_NAMES))

    def target(self, call: ast.Call) -> ast.expr | None:
        """The device that `.to(…)` names."""
        return self._values.expression(call, "device", 0)

    def is_accelerator(self, node: ast.AST | None, depth: int = 0) -> bool:
        """Whether it names one, or may. A `device` that comes from elsewhere may: it is there to be moved to."""
        if node is None or depth > 8:
            return False
        followed = self._names.followed(node)
        match followed:
            case (
                ast.Constant(str(text))
                | ast.JoinedStr([ast.Constant(str(text)), *_])
                | ast.BinOp(ast.Constant(str(text)), ast.Add() | ast.Mod())
                | ast.Call(ast.Attribute(ast.Constant(str(text)), "format"))
            ):
                return text.startswith(_ACCELERATORS)
            case ast.Constant(value):
                return type(value) is int
            case ast.IfExp(_, body, orelse):
                return self.is_accelerator(body, depth + 1) or self.is_accelerator(orelse, depth + 1)
            case ast.Call():
                return self._is_made(followed, depth)
            case ast.Name() | ast.Attribute():
                return self._is_called_so(followed)
            case _:
                return False

    def _is_made(self, call: ast.Call, depth: int) -> bool:
        name = self._names.qualified(call.func)
        if name == "torch.device":
            given = self._values.expression(call, "type" if call.keywords and not call.args else "device", 0)
            return self.is_accelerator(given, depth + 1)
        function = self._names.function(call)
        returns = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)] if function else []
        return name in _INDICES or any(self.is_accelerator(each, depth + 1) for each in returns)

    @cached_property
    def _is_written_for_one(self) -> bool:
        """Whether the file names an accelerator anywhere."""
        texts = [each.value for each in self._names.scopes.all(ast.Constant) if isinstance(each.value, str)]
        named = self._names.scopes.all(ast.Attribute)
        attributes = {each.attr for each in named}
        if any((self._names.qualified(each) or "").startswith("torch.accelerator.") for each in named):
            return True
        return any(text.startswith(_ACCELERATORS) for text in texts) or bool(attributes & {"cuda", "mps"})

    def _is_called_so(self, node: ast.Name | ast.Attribute) -> bool:
        """An unknown object, by its name, in a file that is written for an accelerator."""
        known = self._values.constant(node)
        if isinstance(known, str):
            return known.startswith(_ACCELERATORS)
        if not self._is_written_for_one:
            return isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in {"accelerator", "fabric"}
        if isinstance(node, ast.Attribute):
            is_device = node.attr == "device" and getattr(node.value, "id", "") in _HAVE_A_DEVICE
            return is_device or node.attr in _DEVICE_NAMES
        several = [each.source for each in self._names.bindings(node) if each.source is not None]
        if several:  # assigned under conditions
            return any(self.is_accelerator(each, 4) for each in several if each is not node)
        return node.id.lower().endswith("device") or node.id.lower() in _DEVICE_NAMES

    def _places(self, call: ast.Call) -> bool:
        """Whether a framework moves tensors to an accelerator by itself."""
        name = self._names.qualified(call.func)
        if name == "torch.set_default_device":
            return bool(call.args) and self.is_accelerator(call.args[0])
        if name in _TRAINERS:
            chosen = self._values.constant_argument(call, "accelerator")
            return chosen in {"gpu", "cuda", "mps"} or "gpus" in {each.arg for each in call.keywords}
        return name in _PLACED_BY
