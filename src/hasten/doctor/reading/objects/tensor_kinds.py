"""Which expressions of a file are tensors, and of what kind: attached to a graph or not, on the device or on the host.

An expression of which this is not known has no kind.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from enum import IntEnum

from hasten.doctor.reading.names.name_resolution import Names, only_return
from hasten.doctor.reading.names.scopes import Binding, Kind
from hasten.doctor.reading.names.value_origins import Origins
from hasten.doctor.reading.objects.device_moves import Devices
from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.steps.training_steps import Training


class Tensor(IntEnum):
    """What is computed from several is of the highest kind among them."""

    HOST = 1  # or an array of NumPy
    DEVICE = 2
    ATTACHED = 3  # with the graph that computed it, and on the device


_TO_NUMBERS = frozenset({"item", "tolist"})
_NO_TENSORS = frozenset(
    {"size", "dim", "numel", "nelement", "ndimension", "backward", "is_contiguous", "element_size", "data_ptr", "keys",
     "items", "register_hook", "get_device", "type", "stride", "retain_grad"}
)  # fmt: skip
_WITHOUT_GRADIENTS = frozenset(
    {"detach", "detach_", "argmax", "argmin", "argsort", "eq", "ne", "gt", "lt", "ge", "le", "long", "int", "bool",
     "isnan", "isfinite", "isinf", "sign", "round", "floor", "ceil"}
)  # fmt: skip
_FIELDS_OF_OUTPUTS = frozenset(
    {"loss", "logits", "last_hidden_state", "pooler_output", "hidden_states", "sample", "prediction", "T", "mT", "real"}
)
_MADE_ON_HOST = frozenset(
    f"torch.{name}"
    for name in ("zeros", "ones", "rand", "randn", "randint", "full", "arange", "eye", "empty", "tensor", "linspace",
                 "randperm", "as_tensor", "from_numpy", "FloatTensor", "LongTensor", "Tensor", "IntTensor")
)  # fmt: skip
_NOT_TENSORS_OF_TORCH = ("torch.nn.", "torch.optim.", "torch.utils.", "torch.cuda.", "torch.amp.", "torch.backends.")
_MODULES = frozenset({"torch.nn.Module", "lightning.LightningModule", "pytorch_lightning.LightningModule",
                      "lightning.pytorch.LightningModule", "torch.nn.Sequential"})  # fmt: skip
_MODEL_NAMES = ("model", "net", "network", "encoder", "decoder", "generator", "discriminator", "critic", "actor",
                "policy")  # fmt: skip
_LOSS_NAMES = ("criterion", "loss_fn", "loss_func", "loss_function", "crit", "lossfn")
_FRAMEWORKS = frozenset({"self", "fabric", "engine", "model_engine"})
_WORDS_JOINED = re.compile(r"([a-z0-9])([A-Z])")  # netG


class Tensors:
    def __init__(self, names: Names, training: Training, devices: Devices, origins: Origins) -> None:
        self._names, self._training, self._devices = names, training, devices
        self._origins = origins
        self._kinds: dict[ast.AST, Tensor | None] = {}
        self._losses: dict[str, list[ast.Name]] = {}
        for name in (each for call in training.backwards for each in differentiated(call)):
            self._losses.setdefault(name.id, []).append(name)

    def kind(self, node: ast.AST | None) -> Tensor | None:
        if node is None:
            return None
        if node not in self._kinds:
            self._kinds[node] = None  # of one that depends on itself
            self._kinds[node] = self._find(node)
        return self._kinds[node]

    def is_attached(self, node: ast.AST | None) -> bool:
        return self.kind(node) is Tensor.ATTACHED

    def is_on_device(self, node: ast.AST | None) -> bool:
        """Where the file uses an accelerator at all: what a read of it waits for."""
        kind = self.kind(node)
        return kind is not None and kind >= Tensor.DEVICE and self._devices.accelerated

    def is_differentiated(self, node: ast.AST) -> bool:
        """Whether backward() is called on what a name means here, so that it is surely a tensor."""
        if not isinstance(node, ast.Name):
            return False
        scope, meant = self._names.scopes.of(node), {*map(id, self._names.bindings(node))}
        return any(
            self._names.scopes.of(each) is scope and {*map(id, self._names.bindings(each))} == meant
            for each in self._losses.get(node.id, [])
        )

    def is_loss(self, node: ast.AST) -> bool:
        """Whether it is, or is computed from, what a loss function returned or backward() is called on."""
        for each in ast.walk(node):
            if isinstance(each, ast.Call) and self._computes_loss(each):
                return True
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                sources = [binding.source for binding in self._names.bindings(each)]
                computed = any(isinstance(source, ast.Call) and self._computes_loss(source) for source in sources)
                if computed or self.is_differentiated(each) or _is_called(each.id, ("loss",)):
                    return True
        return False

    def _computes_loss(self, call: ast.Call) -> bool:
        name = (self._names.qualified(call.func) or "").removeprefix("torch.nn.functional.")
        return self.is_criterion(call.func) or "loss" in name or "cross_entropy" in name

    def is_model(self, node: ast.AST) -> bool:
        """Whether what it stands for is a module of parameters: made so in this file, or called so."""
        if self.is_criterion(node):
            return False
        made = self._names.made_by(node)
        if made is not None:
            return self._makes_model(made, node)
        match node:
            case ast.Name("self"):
                return self.is_module_class(self._names.class_of(node))
            case ast.Name(name):  # it may be made in several ways, or returned by `prepare` of a framework
                made_by = [
                    self._makes_model(self._names.made_by(each) or "", each) for each in self._origins.calls(node)
                ]
                return (bool(made_by) and all(made_by)) or _is_called(name, _MODEL_NAMES)
            case ast.Attribute(_, name):
                return self._names.qualified(node) is None and _is_called(name, _MODEL_NAMES)
            case _:
                return False

    def is_module_class(self, owner: ast.ClassDef | None) -> bool:
        bases = [base for each in self._names.classes(owner) for base in each.bases]
        named = [self._names.qualified(base) or ast.unparse(base) for base in bases]
        return any(each in _MODULES or each.endswith(("nn.Module", "LightningModule")) for each in named)

    def is_criterion(self, node: ast.AST) -> bool:
        """Whether calling it computes a loss."""
        made = self._names.made_by(node) or self._names.qualified(node) or ""
        if made.startswith("torch.nn.") and made.endswith("Loss"):
            return True
        return isinstance(node, ast.Name | ast.Attribute) and _is_called(name_of(node), _LOSS_NAMES)

    def _makes_model(self, made: str, node: ast.AST) -> bool:
        if made.startswith("."):
            making = self._names.making(node)
            return making is not None and self.is_module_class(self._names.class_named(making.func))
        if made.startswith("torch.nn."):
            return not made.endswith("Loss")
        return made.startswith(("torchvision.models.", "timm.create_model", "torch.compile", "transformers.Auto"))

    def _find(self, node: ast.AST) -> Tensor | None:
        match node:
            case ast.Name():
                return self._of_name(node)
            case ast.Attribute(base, "data" | "grad"):
                return _without_graph(self.kind(base))
            case ast.Attribute(ast.Name("self")):
                found = [self._of_binding(each) for each in self._names.bindings_of(node)]
                return found[0] if len(found) == 1 else None
            case ast.Attribute(base, field):
                return self.kind(base) if field in _FIELDS_OF_OUTPUTS else None
            case ast.Subscript(base, _):
                return self.kind(base)
            case ast.BinOp(left, _, right):
                is_text = isinstance(left, ast.Constant) and isinstance(left.value, str)
                return None if is_text else _highest((self.kind(left), self.kind(right)))
            case ast.UnaryOp(_, operand):
                return None if isinstance(node.op, ast.Not) else self.kind(operand)
            case ast.Compare(left, operators, others):
                compared = _highest(self.kind(each) for each in (left, *others))
                tests = any(isinstance(each, ast.Is | ast.IsNot | ast.In | ast.NotIn) for each in operators)
                return None if tests else _without_graph(compared)
            case ast.Call():
                kind = self._of_call(node)
                return _without_graph(kind) if self._training.runs_without_gradients(node) else kind
            case _:
                return None

    def _of_name(self, node: ast.Name) -> Tensor | None:
        bindings = [(each, self._of_binding(each)) for each in self._names.bindings(node)]
        if self.is_differentiated(node):
            return None if any(self._is_number(each) for each, _ in bindings) else Tensor.ATTACHED
        augmented = [kind for each, kind in bindings if each.kind is Kind.AUGMENTED]
        kinds = [kind for each, kind in bindings if each.kind is not Kind.AUGMENTED]
        if not kinds or None in kinds:
            return _highest(augmented)  # a running value begins as a number; what is added makes it a tensor
        return min(kind for kind in (*kinds, *augmented) if kind is not None)

    def _is_number(self, binding: Binding) -> bool:
        """Whether it is surely none of a tensor: `.item()`, `float(…)`, 0.0."""
        match binding.kind, binding.source:
            case Kind.VALUE, ast.Call(ast.Attribute(_, "item" | "tolist" | "numpy")):
                return True
            case Kind.VALUE, ast.Call(function):
                return self._names.qualified(function) in {"builtins.float", "builtins.int", "builtins.len"}
            case _:
                return False

    def _of_binding(self, binding: Binding) -> Tensor | None:
        source = binding.source
        match binding.kind:
            case Kind.VALUE | Kind.AUGMENTED:
                return self.kind(source)
            case Kind.PARAMETER:
                kinds = {self.kind(given) for given in self._names.seen_given_to(binding.node)}
                return None if None in kinds else _highest(kinds)
            case Kind.PART:
                return self._of_part(binding)
            case Kind.ITEM if source is not None and not isinstance(source, ast.Call):
                return self.kind(source)
            case _:
                return None

    def _of_part(self, binding: Binding) -> Tensor | None:
        """Of several values, the one that is taken."""
        source = self._names.source(binding)
        if source is not None:
            return self.kind(source)
        several = isinstance(binding.source, ast.Call) and name_of(binding.source.func) in {
            "max",
            "min",
            "topk",
            "sort",
        }
        kind = self.kind(binding.source)
        return _without_graph(kind) if several else kind

    def _of_call(self, call: ast.Call) -> Tensor | None:
        name = self._names.qualified(call.func)
        if name in _MADE_ON_HOST:
            placed = next((each.value for each in call.keywords if each.arg == "device"), None)
            return Tensor.DEVICE if placed is not None and self._devices.is_accelerator(placed) else Tensor.HOST
        if name is not None and name.startswith("numpy."):
            return Tensor.HOST
        if name in {"builtins.sum", "builtins.max", "builtins.min", "builtins.abs"} and call.args:
            return self.kind(call.args[0])
        if name is not None and name.startswith("torch.") and not name.startswith(_NOT_TENSORS_OF_TORCH):
            return self._of_function(name, call)
        if name is not None and name.startswith("torch.nn.functional."):
            return self._of_arguments(call)
        if isinstance(call.func, ast.Attribute) and self.kind(call.func.value) is not None:
            return self._of_method(call, call.func)
        if isinstance(call.func, ast.Attribute) and call.func.attr in {"to", "cuda"} and self._devices.is_move(call):
            return None if self.is_model(call.func.value) else Tensor.DEVICE
        if self.is_model(call.func):
            return Tensor.ATTACHED
        if self.is_criterion(call.func) or (self._names.made_by(call.func) or "").startswith("torch.nn."):
            return self._of_arguments(call)
        return self.kind(only_return(self._names.function(call)))

    def _of_function(self, name: str, call: ast.Call) -> Tensor | None:
        if name.endswith(".functional_call"):
            return Tensor.ATTACHED
        kind, last = self._of_arguments(call), name.rpartition(".")[2]
        if last in _WITHOUT_GRADIENTS or name == "torch.autograd.grad":
            return _without_graph(kind)
        return kind

    def _of_arguments(self, call: ast.Call) -> Tensor | None:
        given = [*call.args, *(each.value for each in call.keywords)]
        inner = [part for each in given for part in (each.elts if isinstance(each, ast.Tuple | ast.List) else [each])]
        return _highest(self.kind(part) for each in inner for part in (each, *self._appended_to(each)))

    def _appended_to(self, node: ast.expr) -> list[ast.expr]:
        """What is put into a list that begins empty, as `torch.stack` gets it."""
        if not isinstance(node, ast.Name) or not isinstance(self._names.followed(node), ast.List):
            return []
        found, scope = list[ast.expr](), self._names.scopes.of(node)
        for call in self._names.scopes.all(ast.Call):
            match call:
                case ast.Call(ast.Attribute(ast.Name(base), "append"), [each]) if base == node.id:
                    found += [each] if self._names.scopes.of(call) is scope else []
        return found

    def _of_method(self, call: ast.Call, method: ast.Attribute) -> Tensor | None:
        kind, name = self.kind(method.value), method.attr
        if name in _NO_TENSORS or name in _TO_NUMBERS:
            return None
        to_host = bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == "cpu"
        if name in {"numpy", "cpu"} or (name == "to" and to_host):
            return Tensor.HOST
        if name in {"to", "cuda"} and self._devices.is_move(call):
            return kind if kind is Tensor.ATTACHED else Tensor.DEVICE
        if name in _WITHOUT_GRADIENTS:
            return _without_graph(kind)
        return _highest((kind, self._of_arguments(call)))


def differentiated(call: ast.Call) -> set[ast.Name]:
    """The names in what backward() is called on: `loss`, and the terms of `scaler.scale(a + b)`."""
    assert isinstance(call.func, ast.Attribute)
    of = call.func.value
    if isinstance(of, ast.Call) and of.args:  # scaler.scale(loss).backward()
        of = of.args[0]
    elif call.args and (name_of(of) in _FRAMEWORKS or "accel" in name_of(of)):  # accelerator.backward(loss)
        of = call.args[0]
    return _terms(of)


def _terms(node: ast.expr) -> set[ast.Name]:
    match node:
        case ast.Name():
            return {node}
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right):
            return _terms(left) | _terms(right)
        case ast.Call(ast.Attribute(base, "mean" | "sum")):
            return _terms(base)
        case _:
            return set()


def _highest(kinds: Iterable[Tensor | None]) -> Tensor | None:
    return max((each for each in kinds if each is not None), default=None)


def _without_graph(kind: Tensor | None) -> Tensor | None:
    return Tensor.DEVICE if kind is Tensor.ATTACHED else kind


def _is_called(name: str, words: Iterable[str]) -> bool:
    parts = _WORDS_JOINED.sub(r"\1_\2", name).lower().strip("_").split("_")
    return any(word in parts or name.lower() == word for word in words)
