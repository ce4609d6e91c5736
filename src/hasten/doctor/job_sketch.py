"""The Job of a training script, written from the names that the script has.

The source is read and never executed. Each field holds the script's own expression; a field that was not found is `…`.
A person completes it: names that a function of the script defines, such as parsed arguments, move into the job.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hasten.doctor.reading.objects.data_loaders import Loader
from hasten.doctor.reading.source_code import Code

MISSING = "…"
_LONGEST = 88  # characters of a line
_WRAPPERS = ("torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel", "torch.compile")
_OF_VALIDATION = ("val", "test", "eval", "dev")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sketch:
    """lines: of Python. local: names in them that the file defines inside a function, sorted."""

    lines: tuple[str, ...]
    local: tuple[str, ...]


def job_sketch(text: str) -> Sketch | None:
    """None for a file that Python cannot read, that trains nothing, or that makes a Job already."""
    try:
        code = Code(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not code.training.backwards or code.calls_to("hasten.Job"):
        return None
    optimizer = next(_optimizers(code), None)
    loaders = [loader for loader in code.loaders if loader.is_trained_on]
    fields = {
        "model": _as_function("", _model(code, optimizer)),
        "loss": _loss(code),
        "optimizer": _as_function(" params", _with_params(optimizer)),
        "train": _named(code, loaders[0]) if loaders else MISSING,
        "valid": _validation(code, loaders),
        "epochs": _epochs(code),
    }
    lines = [f"        {name}={_short(value)}," for name, value in fields.items() if value is not None]
    head = ("import hasten", "", "", "def job() -> hasten.Job:", "    return hasten.Job(")
    return Sketch(lines=(*head, *lines, "    )"), local=tuple(sorted(_local(code, fields.values()))))


def _optimizers(code: Code) -> Iterator[ast.Call]:
    for call in code.all(ast.Call):
        name = code.names.qualified(call.func) or ""
        if name.startswith("torch.optim.") and name.rpartition(".")[2][:1].isupper() and "lr_scheduler" not in name:
            yield call


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


def _loss(code: Code) -> str:
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
            return f"hasten.supervised({criterion})"
    return f"{MISSING},  # a function (model, batch) -> loss"


def _criterion(code: Code, call: ast.Call) -> str | None:
    if (code.names.made_by(call.func) or "").startswith("torch.nn."):
        making = code.names.making(call.func)
        return ast.unparse(making) if making is not None else None
    if (code.names.qualified(call.func) or "").startswith("torch.nn.functional."):
        return ast.unparse(call.func)
    return None


def _named(code: Code, loader: Loader) -> str:
    """The name that a loader is assigned to, else the call that makes it."""
    match code.names.parents.get(loader.call):
        case ast.Assign([ast.Name(name)]):
            return name
        case _:
            return ast.unparse(loader.call)


def _validation(code: Code, trained: list[Loader]) -> str | None:
    """None where the script has no other loader."""
    names = [_named(code, loader) for loader in code.loaders if loader not in trained]
    return next((name for name in names if any(part in name.lower() for part in _OF_VALIDATION)), None)


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


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST else MISSING


def _local(code: Code, values: Iterable[str | None]) -> set[str]:
    """Names in the fields that the module itself does not define."""
    found = set[str]()
    for value in values:
        for name in _names_in(value or ""):
            if name not in code.scopes.module.bindings and not hasattr(builtins, name):
                found.add(name)
    return found - {"hasten", "params"}


def _names_in(value: str) -> set[str]:
    text = value.partition("#")[0].rstrip().rstrip(",").replace(MISSING, "None")
    return {node.id for node in ast.walk(ast.parse(text or "None")) if isinstance(node, ast.Name)}
