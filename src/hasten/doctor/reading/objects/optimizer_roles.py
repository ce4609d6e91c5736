"""Optimizers, schedulers and gradient scalers: which expression is one, and which two are the same.

One is known by the call that makes it, or by its name where that call is not in the file. Two are distinct only where
they surely differ.
"""

from __future__ import annotations

import ast
import re
from enum import Enum, auto

from hasten.doctor.reading.names.argument_values import Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Kind
from hasten.doctor.reading.names.value_origins import is_none

_SCHEDULERS = ("torch.optim.lr_scheduler.", "torch.optim.swa_utils.SWALR")
_OF_RATES = frozenset(
    {"lr", "learning", "rate", "optim", "optimizer", "optimiser", "opt", "step", "warmup", "cosine", "cyclic",
     "plateau", "main", "model", "net", "gen", "dis", "disc", "gan", "generator", "discriminator", "actor", "critic",
     "policy", "encoder", "decoder", "head", "backbone", "epoch", "batch", "torch", "base", "inner", "outer", "meta",
     "adam", "sgd", "multi", "exp", "linear", "one", "cycle", "train", "training", "my", "current", "new"}
)  # fmt: skip
_OPTIMIZERS_OF_OTHERS = frozenset(
    {"adam", "adamw", "sgd", "lamb", "lars", "lion", "rmsprop", "adagrad", "lbfgs", "adafactor", "radam", "nadam",
     "ranger", "madgrad", "sophia", "muon", "sgdp", "adamp", "prodigy"}
)  # fmt: skip
_MAKING = frozenset({"get", "build", "create", "make", "configure", "setup", "init", "initialize", "instantiate"})


class Role(Enum):
    OPTIMIZER = auto()
    SCHEDULER = auto()
    SCALER = auto()


class Optimizers:
    def __init__(self, names: Names, values: Values) -> None:
        self._names, self._values = names, values

    def role(self, node: ast.AST) -> Role | None:
        """By what makes it; else by its name."""
        return _role_of_maker(self.made(node)) or role_of_name(name_of(node))

    def _sources(self, node: ast.AST) -> list[ast.expr]:
        """All that is assigned to it, without None."""
        values = [each.source for each in self._names.bindings_of(node) if each.kind is Kind.VALUE]
        return [each for each in values if each is not None and not is_none(each)]

    def made(self, node: ast.AST | None) -> str:
        """The full name of what makes it, "" where that is not known."""
        return self._names.made_by(node) or ""

    def is_in_sight(self, node: ast.expr) -> bool:
        """Whether its `step` does what torch's does, as far as can be known: not that of a class that wraps one."""
        followed = self._names.followed(node)
        if not isinstance(followed, ast.Call):
            return all(self.is_in_sight(each) for each in self._sources(node) if isinstance(each, ast.Call))
        made = self.made(node) or name_of(followed.func)
        words = words_of(made.rpartition(".")[2])
        if made.startswith(("torch.", "transformers.")) or words & (_OPTIMIZERS_OF_OTHERS | _MAKING):
            return True
        passed = made.islower() and words <= {"optimizer", "optim", "opt", "class", "cls", "fn"}  # a class, by its name
        return passed or words in ({"optimizers"}, {"lr", "schedulers"})

    def is_same(self, one: ast.expr | None, other: ast.expr | None) -> bool:
        """Whether they surely are one object."""
        if one is None or other is None:
            return False
        if self._names.followed(one) is self._names.followed(other):
            return True
        return ast.unparse(one) == ast.unparse(other) and self._origin(one) == self._origin(other)

    def is_distinct(self, one: ast.expr | None, other: ast.expr | None) -> bool:
        """Whether they surely are two objects."""
        if one is None or other is None or self.is_same(one, other):
            return False
        first, second = self._names.followed(one), self._names.followed(other)
        said, also = ast.unparse(one), ast.unparse(other)
        if said.replace("._", ".") == also.replace("._", ".") or any(self._is_item(each) for each in (one, other)):
            return False  # `self.optimizer` may be a property that hands out `self._optimizer`
        if isinstance(first, ast.Call) and isinstance(second, ast.Call):
            return True
        return self._origin(one)[0] is self._origin(other)[0] and self._origin(one)[0] is not None

    def _origin(self, node: ast.expr) -> tuple[ast.AST | None, frozenset[int]]:
        """Where its name is bound, and by what."""
        if isinstance(node, ast.Name):
            bindings = self._names.bindings(node)
            kinds = (ast.FunctionDef, ast.ClassDef, ast.Module)
            scope = self._names.enclosing(bindings[0].node, *kinds) if bindings else None
            return scope, frozenset(id(each) for each in bindings)
        if isinstance(node, ast.Attribute):
            return self._names.enclosing(node, ast.ClassDef, ast.Module), frozenset()
        return None, frozenset()

    def _is_item(self, node: ast.expr) -> bool:
        bindings = self._names.bindings(node) if isinstance(node, ast.Name) else []
        return any(each.kind in {Kind.ITEM, Kind.ENTERED, Kind.ERROR} for each in bindings)

    def modules_of(self, optimizer: ast.expr) -> set[str]:
        """The modules whose parameters it is given, as the file names them; none where that is not known."""
        making = self._names.making(optimizer)
        given = self._names.followed(self._values.expression(making, "params", 0)) if making is not None else None
        return {
            ast.unparse(each.func.value)
            for each in (ast.walk(given) if given is not None else [])
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and "parameters" in each.func.attr
        }

    def scheduled(self, scheduler: ast.expr) -> ast.expr | None:
        """Its optimizer."""
        making = self._names.making(scheduler)
        return self._values.expression(making, "optimizer", 0) if making is not None else None


def words_of(name: str) -> set[str]:
    """Of "optimizerD", "lr_sched" and the like, in small letters."""
    return {each.lower() for each in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def name_of(node: ast.AST) -> str:
    """The last word of its name: "optimizers" for `self.optimizers[0]`."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case ast.Subscript(base) | ast.Call(base):
            return name_of(base)
        case _:
            return ""


def role_of_name(name: str) -> Role | None:
    words = words_of(name)
    if any(each.startswith("sched") for each in words):
        others = {each for each in words if not each.startswith("sched") and len(each) > 1}
        return Role.SCHEDULER if others <= _OF_RATES else None
    if "scaler" in words:
        return Role.SCALER
    if any(each.startswith(("optim", "adam")) or each in {"opt", "opts", "sgd"} for each in words):
        return Role.OPTIMIZER
    return None


def _role_of_maker(made: str) -> Role | None:
    if made.startswith(_SCHEDULERS):
        return Role.SCHEDULER
    if made.startswith("torch.optim.") and "swa_utils" not in made:
        return Role.OPTIMIZER
    return Role.SCALER if made.endswith("GradScaler") else None
