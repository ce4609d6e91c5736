"""The Job of a training script, written from the names that the script has.

The source is read and never executed. Each field holds the script's own expression; a field that was not found is `…`.
A person completes it: names that a function of the script defines, such as parsed arguments, move into the job.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hasten.doctor.reading.objects.data_loaders import Loader
from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.source_code import Code

MISSING = "…"
_LONGEST = 160  # characters of a value
_WRAPPERS = ("torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel", "torch.compile")
_OF_VALIDATION = ("val", "test", "eval", "dev")
_SCHEDULERS = "torch.optim.lr_scheduler."
_COMPOSED = frozenset({"SequentialLR", "ChainedScheduler"})
_BY_METRIC = "ReduceLROnPlateau"
_LENGTHS = {"OneCycleLR": ("total_steps", "epochs", "steps_per_epoch"), "CosineAnnealingLR": ("T_max",)}
"""Arguments of schedulers that give the length of the training, which a job derives itself."""
_POSITIONS = {"total_steps": 2, "epochs": 3, "steps_per_epoch": 4, "T_max": 1}
_CLIPPING = {"clip_grad_norm_": ("clip_norm", "max_norm"), "clip_grad_value_": ("clip_value", "clip_value")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sketch:
    """lines: of Python. local: names in them that the file defines inside a function, sorted. left_out: what the script
    does in its steps that the lines do not take over, each with what to do about it."""

    lines: tuple[str, ...]
    local: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TakingTurns:
    """A script whose networks take turns, which is no job. modules: the expressions of the script, in its order."""

    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Field:
    """note: a comment behind the value."""

    value: str
    note: str = ""

    def as_argument(self, name: str) -> str:
        value = self.value if len(self.value) <= _LONGEST else MISSING
        return f"        {name}={value}," + (f"  # {self.note}" if self.note else "")


def job_sketch(text: str) -> Sketch | TakingTurns | None:
    """None for a file that Python cannot read, that trains nothing, or that makes a Job already."""
    try:
        code = Code(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not code.training.backwards or code.calls_to("hasten.Job"):
        return None
    modules = _modules_of_optimizers(code)
    if len(modules) > 1 and len(code.training.backwards) > 1:
        return TakingTurns(modules)
    fields = _fields(code)
    lines = [field.as_argument(name) for name, field in fields.items()]
    head = ("import hasten", "", "", "def job() -> hasten.Job:", "    return hasten.Job(")
    local = _local(code, (field.value for field in fields.values()))
    return Sketch(
        lines=(*head, *lines, "    )"), local=tuple(sorted(local)), left_out=tuple(_left_out(code, modules[1:]))
    )


def _fields(code: Code) -> dict[str, _Field]:
    """Of the job, by name, in its order."""
    optimizer = next(_optimizers(code), None)
    loaders = [loader for loader in code.loaders if loader.is_trained_on]
    found = {
        "model": _Field(_as_function("", _model(code, optimizer))),
        "loss": _loss(code),
        "optimizer": _Field(_as_function(" params", _with_params(optimizer))),
        "schedule": _schedule(code, optimizer),
        "train": _loader(code, loaders[0]) if loaders else _Field(MISSING),
        "valid": _validation(code, loaders),
        "epochs": _Field(_epochs(code)),
        **_clipping(code),
    }
    defaults = _defaults(code)
    return {name: replace(field, value=_written_out(field.value, defaults)) for name, field in found.items() if field}


def _defaults(code: Code) -> dict[str, ast.Constant]:
    """Of options: "args.lr" -> 0.001, where the file says what it is when nothing is given."""
    options = [each for each in code.all(ast.Attribute) if isinstance(each.value, ast.Name)]
    values = {ast.unparse(each): code.values.constant(each) for each in options}
    return {name: ast.Constant(value) for name, value in values.items() if isinstance(value, int | float | str)}


def _written_out(value: str, defaults: dict[str, ast.Constant]) -> str:
    """An expression with the defaults of options in their place."""

    class Defaults(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            return defaults.get(ast.unparse(node)) or self.generic_visit(node)

    return value if MISSING in value else ast.unparse(Defaults().visit(ast.parse(value, mode="eval")))


def _optimizers(code: Code) -> Iterator[ast.Call]:
    for call in code.all(ast.Call):
        name = code.names.qualified(call.func) or ""
        if name.startswith("torch.optim.") and name.rpartition(".")[2][:1].isupper() and "lr_scheduler" not in name:
            yield call


def _modules_of_optimizers(code: Code) -> tuple[str, ...]:
    """The different modules whose parameters one function gives to optimizers; of a file, the first function with
    several."""
    found = dict[ast.AST | None, dict[str, None]]()
    for optimizer in _optimizers(code):
        function = code.names.enclosing(optimizer, ast.FunctionDef)
        found.setdefault(function, {}).update(dict.fromkeys(_modules_of(code, optimizer)))
    return next((tuple(modules) for modules in found.values() if len(modules) > 1), ())


def _modules_of(code: Code, optimizer: ast.Call) -> list[str]:
    """`Adam(net.parameters())`: one; `Adam(m.parameters()) for m in (first, second)`: each."""
    owner = next(_owners_of_parameters(optimizer), None)
    if owner is None:
        return []
    match code.names.parents.get(optimizer):
        case ast.GeneratorExp(_, [loop]) | ast.ListComp(_, [loop]):
            if isinstance(loop.iter, ast.Tuple | ast.List) and ast.unparse(loop.target) == ast.unparse(owner):
                return [ast.unparse(each) for each in loop.iter.elts]
    return [ast.unparse(owner)]


def _model(code: Code, optimizer: ast.Call | None) -> str:
    """The call that makes the module whose parameters the optimizer has."""
    owner = next(_owners_of_parameters(optimizer), None) if optimizer is not None else None
    if owner is None:
        return MISSING
    made = code.names.making(owner)
    if made is not None and code.names.qualified(made.func) not in _WRAPPERS:
        return ast.unparse(made)
    for node in code.all(ast.Assign):  # of several assignments, the first that is no wrapper
        same = any(ast.dump(each) == ast.dump(_stored(owner)) for each in node.targets)
        call = code.names.making(node.value)
        if same and call is not None and code.names.qualified(call.func) not in _WRAPPERS:
            return ast.unparse(call)
    return ast.unparse(owner)


def _owners_of_parameters(optimizer: ast.Call) -> Iterator[ast.expr]:
    for node in ast.walk(optimizer):
        match node:
            case ast.Call(ast.Attribute(owner, "parameters" | "named_parameters")):
                yield owner


def _stored(node: ast.expr) -> ast.expr:
    """The same name or attribute as the target of an assignment."""
    match node:
        case ast.Name(name):
            return ast.Name(name, ast.Store())
        case ast.Attribute(value, name):
            return ast.Attribute(value, name, ast.Store())
        case _:
            return node


def _with_params(optimizer: ast.Call | None) -> str:
    if optimizer is None:
        return MISSING
    rest = [*optimizer.args[1:], *(each for each in optimizer.keywords if each.arg not in (None, "params"))]
    given = ", ".join(["params", *map(ast.unparse, rest)])
    return f"{ast.unparse(optimizer.func)}({given})"


def _loss(code: Code) -> _Field:
    """For `loss = criterion(output, target)` the criterion; else the function that the user has to write."""
    for backward in code.training.backwards:
        match backward:
            case ast.Call(ast.Attribute(ast.Call(_, [scaled]), "backward")):  # scaler.scale(loss).backward()
                start: ast.expr = scaled
            case ast.Call(ast.Attribute(start, "backward"), []):
                pass
            case ast.Call(_, [start]):  # accelerator.backward(loss)
                pass
            case _:
                continue
        call = code.names.making(start)
        if call is not None and len(call.args) == 2 and (criterion := _criterion(code, call)) is not None:
            return _Field(f"hasten.supervised({criterion})")
    return _Field(MISSING, "a function (model, batch) -> loss")


def _criterion(code: Code, call: ast.Call) -> str | None:
    if (code.names.made_by(call.func) or "").startswith("torch.nn."):
        making = code.names.making(call.func)
        return ast.unparse(making) if making is not None else None
    if (code.names.qualified(call.func) or "").startswith("torch.nn.functional."):
        return ast.unparse(call.func)
    return None


def _schedule(code: Code, optimizer: ast.Call | None) -> _Field | None:
    """None where the script has no scheduler of torch; the scheduler as a note where the job's form is not clear."""
    found = [call for call in code.all(ast.Call) if (code.names.qualified(call.func) or "").startswith(_SCHEDULERS)]
    makers = {call: code.names.making(code.values.expression(call, "optimizer", 0)) for call in found}
    found = [call for call in found if makers[call] in (optimizer, None)]
    if not found:
        return None
    call = next((each for each in found if _kind(code, each) in _COMPOSED), found[0])
    unit = _unit_of(code, call)
    if unit is None or _kind(code, call) in {*_COMPOSED, _BY_METRIC}:
        return _Field(MISSING, ast.unparse(call))
    if unit == "step" and _lasts_for_training(code, call):
        value = _as_function(" optimizer, total_steps", _for_any_length(code, call))
    else:
        value = f'hasten.Schedule(lambda optimizer: {_called(call, _rest(call, "optimizer", 0))}, unit="{unit}")'
    return _Field(value) if len(value) <= _LONGEST else _Field(MISSING, ast.unparse(call))


def _kind(code: Code, scheduler: ast.Call) -> str:
    """Such as "OneCycleLR"."""
    return (code.names.qualified(scheduler.func) or "").removeprefix(_SCHEDULERS)


def _unit_of(code: Code, scheduler: ast.Call) -> str | None:
    """Which loop its step() lies in, "step" or "epoch"; None where that is not known."""
    for call in code.methods("step"):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if code.names.making(owner) is scheduler:
            loop = next(iter(code.training.loops_around(call)), None)
            if any(loop is step.node for step in code.training.steps):
                return "step"
            if any(loop in step.epochs for step in code.training.steps):
                return "epoch"
    return None


def _lasts_for_training(code: Code, scheduler: ast.Call) -> bool:
    """Whether its length is given, and is not known to differ from the number of its steps."""
    names = _LENGTHS.get(_kind(code, scheduler), ())
    given = [code.values.expression(scheduler, name, _POSITIONS[name]) for name in names]
    lengths = [code.schedules.amounts.of(each) for each in given if each is not None]
    total = lengths[0] if lengths else None
    for each in lengths[1:]:
        total = total.times(each) if total is not None else None
    stepped = [each for each in code.schedules.stepped(_kind(code, scheduler)) if each.making is scheduler]
    steps = [code.schedules.amount(each) for each in stepped]
    return bool(lengths) and (total is None or None in steps or total in steps)


def _for_any_length(code: Code, scheduler: ast.Call) -> str:
    lengths = _LENGTHS[_kind(code, scheduler)]
    first = min(_POSITIONS[name] for name in lengths)
    before = [ast.unparse(each) for each in scheduler.args[1:first]]
    named = [ast.unparse(each) for each in scheduler.keywords if each.arg not in (*lengths, "optimizer")]
    return _called(scheduler, [*before, *named, f"{lengths[0]}=total_steps"])


def _rest(call: ast.Call, name: str, position: int) -> list[str]:
    """The arguments without the one of this name and position."""
    places = [each for number, each in enumerate(call.args) if number != position]
    return [ast.unparse(each) for each in (*places, *(each for each in call.keywords if each.arg != name))]


def _called(scheduler: ast.Call, arguments: list[str]) -> str:
    return f"{ast.unparse(scheduler.func)}({', '.join(['optimizer', *arguments])})"


def _clipping(code: Code) -> dict[str, _Field]:
    """By the bound that the script gives, to a function of torch or to a method of what holds the gradients."""
    found = dict[str, _Field]()
    for call in code.all(ast.Call):
        if (field := _CLIPPING.get(name_of(call.func))) is not None:
            named = [each.value for each in call.keywords if each.arg == field[1]]
            bound = [*named, *call.args[:2][-1:]]
            if bound:
                found.setdefault(field[0], _Field(ast.unparse(bound[0])))
    return found


def _left_out(code: Code, others: tuple[str, ...]) -> Iterator[str]:
    """others: modules with an optimizer of their own."""
    if others:
        yield f"the optimizer of {', '.join(others)} (optimizer= may return a list, see parameters=)"
    called = {code.names.qualified(call.func) or "" for call in code.all(ast.Call)}
    precision = [word for word in ("autocast", "GradScaler") if any(
        name.startswith("torch.") and name.endswith(f".{word}") for name in called)]  # fmt: skip
    if precision:
        yield f"{' and '.join(precision)} (hasten tune tries precision by itself)"
    for every in dict.fromkeys(ast.unparse(window.every) for window in code.windows.all):
        yield f"gradient accumulation (multiply the batch_size of the job's loader by {every})"


def _loader(code: Code, loader: Loader) -> _Field:
    """The name that it is assigned to, and the function that returns it; or the call that makes it."""
    function = code.names.enclosing(loader.call, ast.FunctionDef)
    returned = [each for each in ast.walk(function) if isinstance(each, ast.Return)] if function is not None else []
    match code.names.parents.get(loader.call):
        case ast.Assign([ast.Name(name)]):
            names = [each.id for value in returned for each in ast.walk(value) if isinstance(each, ast.Name)]
            return _Field(name, f"returned by {function.name}()" if function is not None and name in names else "")
        case ast.Return() if function is not None:
            return _Field(f"{function.name}({MISSING})")
        case _:
            return _Field(ast.unparse(loader.call))


def _validation(code: Code, trained: list[Loader]) -> _Field | None:
    """None where the script has no other loader."""
    found = [_loader(code, loader) for loader in code.loaders if loader not in trained]
    return next((each for each in found if any(part in each.value.lower() for part in _OF_VALIDATION)), None)


def _epochs(code: Code) -> str:
    for step in code.training.steps:
        for loop in step.epochs:
            match loop:
                case ast.For(_, ast.Call(ast.Name("range" | "trange"), bounds)):
                    return _count(bounds)
    return MISSING


def _count(bounds: list[ast.expr]) -> str:
    """Of the turns of a range, by its arguments: for `range(1, n + 1)` it is n."""
    match bounds:
        case [last] | [ast.Constant(1), ast.BinOp(last, ast.Add(), ast.Constant(1))]:
            return ast.unparse(last)
        case [ast.Constant(int(first)), ast.Constant(int(end))]:
            return str(end - first)
        case [_, last, *_]:
            return ast.unparse(last)
        case _:
            return MISSING


def _as_function(parameters: str, body: str) -> str:
    return f"lambda{parameters}: {body}"


def _local(code: Code, values: Iterable[str]) -> set[str]:
    """Names in the fields that the module itself does not define."""
    found = set[str]()
    for value in values:
        for name in _names_in(value):
            if name not in code.scopes.module.bindings and not hasattr(builtins, name):
                found.add(name)
    return found - {"hasten"}


def _names_in(value: str) -> set[str]:
    """Without those that it binds itself: parameters of its functions, and what its comprehensions go through."""
    nodes = [*ast.walk(ast.parse(value.replace(MISSING, "None")))]
    names = [each for each in nodes if isinstance(each, ast.Name)]
    bound = {each.id for each in names if isinstance(each.ctx, ast.Store)}
    return {each.id for each in names} - bound - {each.arg for each in nodes if isinstance(each, ast.arg)}
