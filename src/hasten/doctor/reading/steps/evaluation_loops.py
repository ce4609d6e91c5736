"""The evaluation loops of a file, the call of the model in each, and whether that call records a graph."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hasten.doctor.reading.names.argument_values import Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import COMPREHENSIONS, Function, begin, end, iterated
from hasten.doctor.reading.names.value_origins import Origins
from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.objects.tensor_kinds import Tensors
from hasten.doctor.reading.steps.model_modes import Modes
from hasten.doctor.reading.steps.timelines import Identity, Moment, Timelines
from hasten.doctor.reading.steps.training_steps import Around, Training

_LOADERS = re.compile(
    r"loader|(^|_)(dl|batches|feed|queue)$|(^|_)(train|val|valid|test|eval|dev|data)_?iter(ator)?$|^iterator$"
    r"|(^|_)(val|valid|validation|test|eval|dev)_?(set|data|dataset|ds|generator|split)$", re.I)  # fmt: skip
_NO_MODELS = re.compile(r"(class|cls|fn|func|config|args|name|type|kwargs)$", re.I)
_OFF = re.compile(r"no_?grad|inference|set_grad", re.I)
_MAY_BE_OFF = re.compile(r"grad|eval|infer|valid|(^|_)(mode|test)(_|$)", re.I)
_TRAINS = re.compile(r"backward|optim(?!al|um)|zero_grad|loss_scaler", re.I)
_TRAIN_CALLS = re.compile(r"^(step|update_(weights|param\w*|model|net\w*|policy|actor|critic)|\w*fit|\w*train\w*)$")
_OF_GRADIENTS = re.compile(
    r"(^|_)grad(s|ients?)?(_(?!checkpoint|accum)|$)|autograd|gradcam|attack|advers|perturb|fgsm|pgd|jacobian|saliency|hessian",
    re.I,
)
_NO_GRADIENTS = frozenset({"no_grad", "set_grad_enabled", "clip_grad_norm_", "is_grad_enabled"})
_FITS = frozenset(
    {"transformers.Trainer", "transformers.Seq2SeqTrainer", "lightning.Trainer", "pytorch_lightning.Trainer",
     "lightning.pytorch.Trainer"}
)  # fmt: skip
_FRAMEWORKS = re.compile(r"(Lightning|Trainer|Callback|LightningModule|LightningDataModule)")
_RUN_BY_FRAMEWORKS = re.compile(r"valid|test|predict|eval")


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """One run of an evaluation loop. call: of the model, or the call in the loop that leads to it where training uses
    the function around it too. loop: around that call. index: of the model's call in the timeline. model: the objects
    that it may be."""

    call: ast.Call
    loop: ast.AST
    index: int
    modes: Modes
    model: frozenset[Identity]
    with_gradients: bool


class Evaluations:
    """Of a file that trains; none of another."""

    def __init__(self, names: Names, values: Values, training: Training, tensors: Tensors, origins: Origins) -> None:
        self._names, self._values, self._training, self._tensors = names, values, training, tensors
        self._origins = origins
        self._timelines = Timelines(names, training)
        self._is_loop: dict[ast.AST, bool] = {}

    @cached_property
    def modes(self) -> list[Modes]:
        given = (self._names, self._values, self._training, self._tensors, self._timelines)
        return [Modes(*given, moments) for moments in self._timelines.through([*self._steps, *self._loops])]

    @cached_property
    def all(self) -> list[Evaluation]:
        """The first call of the model in each run of each loop, in the order of time."""
        attributes = self._names.scopes.all(ast.Attribute)
        fits = any(each.attr in {"train", "fit"} and self._names.made_by(each.value) in _FITS for each in attributes)
        return [each for modes in self.modes for each in self._of(modes)] if self._steps or fits else []

    def _of(self, modes: Modes) -> Iterator[Evaluation]:
        off, last = False, None
        for index, moment in enumerate(modes.moments):
            call = moment.node
            if not isinstance(call, ast.Call):
                continue
            if name_of(call.func) == "set_grad_enabled" and isinstance(self._names.parents[call], ast.Expr):
                off = ast.unparse(call.args[0]) != "True" if call.args else True  # from there on
            place = self._loop_around(moment)
            if place is None or moment.around[: place + 1] == last or not self.is_model_call(call, moment):
                continue
            inside = [each for each, _ in moment.around[place + 1 :] if isinstance(each, Function)]
            outer = next((call for function, call in reversed(moment.path) if function in inside[:1]), call)
            if outer is None:
                continue
            last = moment.around[: place + 1]
            shared = inside and inside[0] in self._used_in_training
            model = self._timelines.with_owners(_callee(call), moment.path)
            quiet = off or self._is_quiet(moment, call)
            loop = moment.around[place][0]
            yield Evaluation(outer if shared else call, loop, index, modes, model, not quiet)

    def _loop_around(self, moment: Moment) -> int | None:
        """Where in what is around it the innermost loop over batches is; None where it is not one that evaluates."""
        for place in range(len(moment.around) - 1, -1, -1):
            node = moment.around[place][0]
            if node in self._steps:
                return None
            if node in self._loops:
                if node not in self._is_loop:
                    self._is_loop[node] = self._evaluates(node)
                return place if self._is_loop[node] and not self._is_part_of_step(moment.around[:place]) else None
        return None

    @cached_property
    def _loops(self) -> set[ast.AST]:
        """And comprehensions."""
        scopes = self._names.scopes
        read: list[tuple[ast.AST, ast.expr]] = [(each, each.iter) for each in scopes.all(ast.For)]
        read += [(each, each.generators[0].iter) for kind in COMPREHENSIONS for each in scopes.all(kind)]
        return {each for each, iterable in read if self._reads_loader(iterable)}

    @cached_property
    def _steps(self) -> set[ast.AST]:
        return {step.node for step in self._training.steps}

    def _is_part_of_step(self, around: Around) -> bool:
        """Whether each training step runs it: a later backward() may need what it computes."""
        places = [number for number, (each, _) in enumerate(around) if each in self._steps]
        conditions = (ast.If, ast.IfExp, ast.ExceptHandler)
        return bool(places) and not any(isinstance(each, conditions) for each, _ in around[places[-1] :])

    def _reads_loader(self, read: ast.expr) -> bool:
        read = iterated(read)
        followed = self._names.followed(read)
        if isinstance(followed, ast.Call) and iterated(followed) is not followed:  # bar = tqdm(loader)
            read = iterated(followed)
        several = read.args if isinstance(read, ast.Call) and name_of(read.func) == "zip" else [read]
        return any(self._is_loader(each) for each in several)

    def _is_loader(self, node: ast.expr) -> bool:
        makers = [name_of(each.func) for each in self._origins.calls(node)]
        return bool(_LOADERS.search(name_of(node))) or any(each.lower().endswith("loader") for each in makers)

    def _evaluates(self, loop: ast.AST) -> bool:
        """Whether nothing in it looks as if it trained, or needed gradients."""
        function = self._names.enclosing(loop, Function)
        if function is not None and (self._is_run_by_framework(function) or _trains_by_name(function.name)):
            return False
        if any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(loop)):
            return False
        trains = any(_hints(each.node) for each in self._training.run(loop))
        return not trains and not self._is_differentiated_later(loop, function or self._names.scopes.module.node)

    def _is_differentiated_later(self, loop: ast.AST, function: ast.AST) -> bool:
        """Whether what it has summed up trains something in its statement or after that."""
        whole = loop if isinstance(loop, ast.stmt) else self._names.enclosing(loop, ast.stmt) or loop
        bound = {each.id for each in ast.walk(whole) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        calls = [each for each in ast.walk(function) if isinstance(each, ast.Call)]
        trains = [each for each in calls if any(map(_TRAINS.search, _all_words(each.func)))]
        later = [each for each in trains if begin(each) > end(whole)]
        return any(_names_in(each) & bound for each in later) or any(loop in ast.walk(each) for each in trains)

    def _is_run_by_framework(self, function: Function) -> bool:
        owner = self._names.parents[function]
        if not isinstance(owner, ast.ClassDef) or not _RUN_BY_FRAMEWORKS.search(function.name):
            return False
        return any(_FRAMEWORKS.search(ast.unparse(base)) for base in owner.bases)

    def is_model_call(self, call: ast.Call, moment: Moment) -> bool:
        callee = _callee(call)
        if not isinstance(callee, ast.Name | ast.Attribute) or self._names.function_named(callee) is not None:
            return False
        if not (call.args or call.keywords) or _NO_MODELS.search(name_of(callee)) or self._tensors.is_criterion(callee):
            return False
        # A model by its name or making, or by train(), eval() or parameters() that the file calls.
        return self._tensors.is_model(callee) or bool(self._timelines.own(callee, moment.path) & self._modules)

    @cached_property
    def _modules(self) -> frozenset[Identity]:
        found = set[Identity]()
        for modes in self.modes:
            for moment in modes.moments:
                match moment.node:
                    case ast.Call(ast.Attribute(base, "parameters" | "train" | "eval"), []):
                        found |= self._timelines.own(base, moment.path)
        return frozenset(each for each in found if not isinstance(each, ast.ClassDef))

    @cached_property
    def _used_in_training(self) -> set[ast.AST]:
        return {each for step in self._training.steps for ran in step.ran for each, _ in ran.around}

    def _is_quiet(self, moment: Moment, call: ast.Call) -> bool:
        """Whether gradients are, or may be, switched off there."""
        around = [*(each for each, _ in moment.around), *self._names.around(call)]
        forward = self._names.method_of(self._names.class_of(_callee(call)), "forward")
        around += [forward, *forward.body] if forward is not None else []
        frozen = self._timelines.own(_callee(call), moment.path) & self._frozen
        return bool(frozen) or any(self._may_switch_off(each) for each in around)

    @cached_property
    def _frozen(self) -> frozenset[Identity]:
        """Models none of whose parameters gets a gradient."""
        found = set[Identity]()
        for moment in (each for modes in self.modes for each in modes.moments):
            match moment.node:
                case ast.Call(ast.Attribute(base, "requires_grad_"), [ast.Constant(False)]):
                    found |= self._timelines.own(base, moment.path)
                case ast.For(_, ast.Call(ast.Attribute(base, "parameters"), []), body) if any(
                    "requires_grad" in ast.unparse(each) and "False" in ast.unparse(each) for each in body
                ):
                    found |= self._timelines.own(base, moment.path)
        return frozenset(found)

    def _may_switch_off(self, node: ast.AST) -> bool:
        entered = [item.context_expr for item in node.items] if isinstance(node, ast.With) else []
        return any(map(self._may_be_off, node.decorator_list if isinstance(node, Function) else entered))

    def _may_be_off(self, entered: ast.expr) -> bool:
        """By its words, or those of what makes it in the file; by its name where it comes from another file."""
        followed = self._names.followed(entered) or entered
        sources: list[ast.AST | None] = [entered, followed]
        sources += [each.source for each in self._names.bindings_of(followed)]
        if isinstance(followed, ast.Call):
            sources.append(self._names.function(followed) or self._names.class_named(followed.func))
        if any(_OFF.search(word) for each in sources if each is not None for word in _all_words(each)):
            return True
        return bool(_MAY_BE_OFF.search(name_of(followed)))


def _callee(call: ast.Call) -> ast.expr:
    """The model: of `model.forward(x)` and `model.module(x)`, too."""
    node = call.func
    while isinstance(node, ast.Attribute) and node.attr in {"forward", "module"}:
        node = node.value
    return node


def _names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _words(node: ast.AST) -> Iterator[str]:
    """The names that it is made of, without those of its parts."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            yield name
        case ast.Call(_, _, keywords):
            yield from (each.arg for each in keywords if each.arg is not None)


def _all_words(node: ast.AST) -> Iterator[str]:
    return (word for each in ast.walk(node) for word in _words(each))


def _hints(node: ast.AST) -> bool:
    """Whether it is named as what trains is, or what needs gradients."""
    if isinstance(node, ast.Call) and _TRAIN_CALLS.search(name_of(node.func)):
        return True
    return any(
        _TRAINS.search(word) or (word not in _NO_GRADIENTS and _OF_GRADIENTS.search(word)) for word in _words(node)
    )


def _trains_by_name(name: str) -> bool:
    words = name.lower().split("_")
    return bool({"train", "training", "fit", "learn", "adapt", "finetune"} & {*words}) and not any(
        each.startswith(("eval", "val", "test", "predict", "infer", "score", "acc")) for each in words
    )
