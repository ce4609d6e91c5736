"""In which mode a model is at each moment of a timeline, by the last train() or eval()."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from hasten.doctor.reading.names.argument_values import ABSENT, Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.objects.tensor_kinds import Tensors
from hasten.doctor.reading.steps.timelines import Identity, Moment, Timelines
from hasten.doctor.reading.steps.training_steps import Around, Training

_SWITCHES = re.compile(r"(^|_)(train|eval|mode|training|inference)(_|$)")
_CONDITIONS = (ast.If, ast.IfExp, ast.ExceptHandler, ast.BoolOp)
_COMPUTE_NOTHING = frozenset(
    {"train", "eval", "parameters", "named_parameters", "state_dict", "load_state_dict", "zero_grad", "to", "cuda",
     "modules", "named_modules", "children", "requires_grad_", "register_forward_hook", "no_sync", "join"}
)  # fmt: skip


class Mode(Enum):
    TRAIN = auto()
    EVAL = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Switch:
    """index: in its timeline. objects: of which it switches the mode. is_guessed: from the name of an unknown function
    that gets them."""

    index: int
    mode: Mode
    call: ast.Call
    objects: frozenset[Identity]
    is_guessed: bool = False

    def may_switch(self, objects: frozenset[Identity]) -> bool:
        return bool(self.objects & objects) if self.is_guessed else may_be(self.objects, objects)


class Modes:
    """Of one timeline."""

    def __init__(self, names: Names, values: Values, training: Training, tensors: Tensors, timelines: Timelines,
                 moments: list[Moment]) -> None:  # fmt: skip
        self._names, self._values, self._training, self._tensors = names, values, training, tensors
        self._timelines, self.moments = timelines, moments

    @cached_property
    def switches(self) -> dict[int, Switch]:
        found = ((index, self._switch(index, each)) for index, each in enumerate(self.moments))
        return {index: switch for index, switch in found if switch is not None}

    def _switch(self, index: int, moment: Moment) -> Switch | None:
        call = moment.node
        if not isinstance(call, ast.Call):
            return None
        name, own = name_of(call.func), self._names.function(call)
        base = call.func.value if isinstance(call.func, ast.Attribute) else None
        if base is not None and name in {"train", "eval"}:
            if own is not None and not self._tensors.is_model(base):
                return None
            mode = self._mode(call) if name == "train" else Mode.EVAL
            if any(isinstance(each, ast.Yield) for function, _ in moment.path for each in ast.walk(function)):
                mode = Mode.UNKNOWN  # a context manager, which switches back
            return Switch(index, mode, call, self._timelines.own(base, moment.path))
        if _SWITCHES.search(name) and own is None:
            given = [each for each in (base, *call.args) if isinstance(each, ast.expr)]
            objects = [each for each in given if self._names.qualified(each) is None]  # no modules of Python
            meant = frozenset[Identity]().union(*(self._timelines.own(each, moment.path) for each in objects))
            return Switch(index, Mode.UNKNOWN, call, meant, is_guessed=True)
        return None

    def _mode(self, call: ast.Call) -> Mode:
        given = self._values.constant_argument(call, "mode", 0)
        return {ABSENT: Mode.TRAIN, True: Mode.TRAIN, False: Mode.EVAL}.get(given, Mode.UNKNOWN)

    @cached_property
    def uses(self) -> dict[int, frozenset[Identity]]:
        """The objects that are called, or given to what is called, by the index of the call."""
        calls = {index: each for index, each in enumerate(self.moments) if isinstance(each.node, ast.Call)}
        return {index: self._used(each.node, each) for index, each in calls.items() if not _computes_nothing(each.node)}  # pyright: ignore[reportArgumentType]

    def _used(self, call: ast.Call, moment: Moment) -> frozenset[Identity]:
        found = self._timelines.with_owners(call.func, moment.path)
        given = [each for each in call.args if isinstance(each, ast.Name | ast.Attribute)]
        return found.union(*(self._timelines.own(each, moment.path) for each in given))

    def trained(self) -> Iterator[tuple[int, frozenset[Identity]]]:
        """What each training step calls in every turn, with gradients."""
        steps = {step.node for step in self._training.steps}
        for index, used in self.uses.items():
            around = self.moments[index].around
            places = [number for number, (each, _) in enumerate(around) if each in steps]
            inside = around[places[-1] + 1 :] if places else ()
            conditional = not places or any(isinstance(each, _CONDITIONS) for each, _ in inside)
            if not conditional and not self._training.is_without_gradients(around):
                yield index, used

    @cached_property
    def optimized(self) -> frozenset[Identity]:
        """Models whose parameters are asked for, here or anywhere in the file, as in a constructor."""
        anywhere = ((each, ()) for each in self._names.scopes.all(ast.Call))
        found = frozenset[Identity]()
        for node, path in (*((each.node, each.path) for each in self.moments), *anywhere):
            match node:
                case ast.Call(ast.Attribute(base, "parameters" | "named_parameters")):
                    found |= self._timelines.own(base, path)
        return found

    def before(self, objects: frozenset[Identity], index: int) -> Mode:
        """The mode that the model surely has there in the first turn of all loops; UNKNOWN where that is not sure."""
        around = self.moments[index].around
        trained_before = False
        for each in range(index - 1, -1, -1):
            moment = self.moments[each]
            if _excludes(moment.around, around):
                continue
            switch = self.switches.get(each)
            if switch is not None and switch.may_switch(objects):
                if switch.mode is not Mode.TRAIN:
                    return switch.mode
                if switch.objects & objects and not _is_conditional(moment.around, around):
                    # train() straight before an evaluation, with no training between, is on purpose.
                    trained = any(each < between < index for between in self._in_training)
                    return Mode.TRAIN if trained else Mode.UNKNOWN
            if moment.node in objects:
                return Mode.TRAIN  # it is made here
            trained_before = trained_before or (each in self._in_training and bool(self.uses[each] & objects))
        return Mode.TRAIN if trained_before else Mode.UNKNOWN

    @cached_property
    def _in_training(self) -> set[int]:
        return {index for index, _ in self.trained()}

    def last_in_turn(self, objects: frozenset[Identity], index: int) -> Switch | None:
        """The eval() that decides the mode when a turn of the loops around it gets here, after the model was used for
        something else; None where there is none."""
        used = False
        leading_here = {call for _, call in self.moments[index].path}
        for each in self._backwards(index, objects):
            switch = self.switches.get(each)
            moment = self.moments[each]
            if _leaves(moment.around, self.moments[index].around):
                continue
            if moment.node in objects:
                return None  # it is rebuilt
            if switch is not None and switch.objects & objects and switch.mode is Mode.EVAL:
                return switch if used and not self._is_chosen(switch, objects) else None
            if switch is not None and switch.mode is not Mode.EVAL and switch.may_switch(objects):
                return None
            if each not in self._in_training and moment.node not in leading_here:
                used = used or bool(self.uses.get(each, frozenset()) & objects)
        return None

    def _backwards(self, index: int, objects: frozenset[Identity]) -> Iterator[int]:
        """What runs before it in the turns of the loops around it, the latest first, the innermost loop first."""
        low, high = index, index
        for loop in self.moments[index].loops():
            first, last = low, high
            while first > 0 and loop in self.moments[first - 1].loops():
                first -= 1
            while last + 1 < len(self.moments) and loop in self.moments[last + 1].loops():
                last += 1
            yield from range(low - 1, first - 1, -1)
            if loop in objects:
                return  # each turn has another
            yield from range(last, high, -1)
            low, high = first, last

    def _is_chosen(self, switch: Switch, objects: frozenset[Identity]) -> bool:
        """`if phase == "train": model.train()`, `else: model.eval()`"""
        chosen = self.moments[switch.index].around
        others = [each for each in self.switches.values() if each.mode is not Mode.EVAL and each.objects & objects]
        return any(_excludes(self.moments[each.index].around, chosen) for each in others)


def may_be(some: frozenset[Identity], others: frozenset[Identity]) -> bool:
    """Whether they may be the same object: unless each is known, and they differ."""
    if some & others:
        return True
    kinds = [{_kind(each) for each in objects} for objects in (some, others)]
    return not (kinds[0] & kinds[1])


def _kind(identity: Identity) -> object:
    """Only two objects of the same kind are known to differ."""
    match identity:
        case (owner, name):
            return "text" if name == "text" else owner
        case ast.Call() | ast.arg():
            return type(identity)
        case _:
            return identity


def _computes_nothing(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _COMPUTE_NOTHING


def _excludes(some: Around, others: Around) -> bool:
    """Whether they lie in different branches of one condition, of which a turn takes one."""
    branches: dict[ast.AST, str] = {each: branch for each, branch in some if isinstance(each, ast.If | ast.IfExp)}
    return any(each in branches and branches[each] != branch for each, branch in others)


def _is_conditional(some: Around, others: Around) -> bool:
    """Whether it lies under a condition that the other does not."""
    shared = {each for each, _ in others}
    return any(isinstance(each, _CONDITIONS) and each not in shared for each, _ in some)


def _leaves(some: Around, others: Around) -> bool:
    """Whether its branch ends by leaving the loop, or the function, that both are in."""
    shared = {each for each, _ in others}
    node, branch = next(((each, branch) for each, branch in some if each not in shared), (None, ""))
    body = getattr(node, branch) if isinstance(node, ast.If) else []
    return bool(body) and isinstance(body[-1], ast.Return | ast.Break | ast.Raise)
