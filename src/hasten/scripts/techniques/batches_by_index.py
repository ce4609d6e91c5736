"""Gather each batch of tensors by one index instead of sample by sample.

What it does: the loader's sampler gives the indices of a whole batch, and the data set is indexed once with all of
them. By default a loader reads one sample after the other and stacks them.

Why it is faster: one gather replaces as many small operations as a batch has samples. The difference is large where
samples are small, as rows of a table are.

When it loses: never measurably.

What it changes: nothing ("bit-exact"). The same batches come in the same order.

Limits: a TensorDataset, or a data set whose `__getitem__` only indexes tensors or arrays; the loader's own sampler and
collate function. `loader.batch_size` becomes None, so a script that reads it is refused, and so is one whose loader
Accelerate's `prepare` rebuilds.

Example:

    batch_sampler = BatchSampler(RandomSampler(dataset), batch_size=64, drop_last=False)
    loader = DataLoader(dataset, batch_size=None, sampler=batch_sampler)
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from textwrap import dedent
from typing import Any

from hasten.doctor.reading.names.scopes import COMPREHENSIONS
from hasten.doctor.reading.source_code import Code
from hasten.errors import PlanError
from hasten.facts.choice import Preserves
from hasten.facts.scripts.script_places import ScriptPlaces
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.scripts.edits.edit import LOADER_ARGUMENTS, AddImport, AddLines, Edit, SetKeywords
from hasten.scripts.edits.source_places import call_at, free_name
from hasten.scripts.techniques.script_technique import RunningLoader, ScriptTechnique, Sources

LIBRARY = "torch.utils.data"
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)
_READ_BY_SCRIPTS = frozenset({"batch_sampler", "batch_size", "drop_last", "sampler"})


def edits(places: ScriptPlaces, sources: Sources) -> list[Edit]:
    place = places.loader
    if place is None:
        raise PlanError((places.missing or {}).get("loader", "the steps read no DataLoader"))
    text = sources(place.file)
    code = Code(text)
    call = call_at(code.tree, place)
    if code.names.qualified(call.func) != f"{LIBRARY}.DataLoader":
        raise PlanError(f"line {place.line} makes a loader of another class")
    given = _arguments(call)
    _check_statement(code, call)
    prefix = "" if isinstance(call.func, ast.Name) else _source(text, call.func).removesuffix("DataLoader")
    name, lines = free_name(code.tree, ("batch_sampler", "index_batches", "batch_indices")), list[str]()
    dataset, keywords = _source(text, given["dataset"]), {"batch_size": "None", "sampler": name}
    if not isinstance(given["dataset"], ast.Name | ast.Attribute):
        made, dataset = dataset, free_name(code.tree, ("dataset", "train_dataset", "samples"))
        lines.append(f"{dataset} = {made}")
        keywords["dataset"] = dataset
    kind = "RandomSampler" if _is_true(given.get("shuffle")) else "SequentialSampler"
    draws = kind == "RandomSampler" and "generator" in given
    drawn = f", generator={_source(text, given['generator'])}" if draws else ""
    drops = _source(text, given["drop_last"]) if "drop_last" in given else "False"
    size = _source(text, given["batch_size"])
    sampler = f"{prefix}{kind}({dataset}{drawn})"
    lines.append(f"{name} = {prefix}BatchSampler({sampler}, batch_size={size}, drop_last={drops})")
    return [
        *([] if prefix else [AddImport(file=place.file, module=LIBRARY, names=("BatchSampler", kind))]),
        AddLines(call=place, lines=tuple(lines), where="before"),
        SetKeywords(call=place, keywords=keywords, without=("shuffle", "drop_last"), positions=LOADER_ARGUMENTS),
    ]


def _arguments(call: ast.Call) -> Mapping[str, ast.expr]:
    """Name -> value. Raises PlanError for a call whose batches are made in another way, or cannot be known."""
    if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
        raise PlanError(f"line {call.lineno} has arguments of the DataLoader that are not written there")
    given = dict[str, ast.expr](zip(LOADER_ARGUMENTS, call.args, strict=False))
    given |= {each.arg: each.value for each in call.keywords if each.arg is not None}
    given = {name: value for name, value in given.items() if not _is_constant(value, None)}
    for name in ("sampler", "batch_sampler", "collate_fn"):
        if name in given:
            raise PlanError(f"the DataLoader has a {name} of the script's own")
    if "batch_size" not in given or _is_constant(given["batch_size"], 1):
        raise PlanError("a batch is one sample")
    if "shuffle" in given and not isinstance(given["shuffle"], ast.Constant):
        raise PlanError(f"line {call.lineno} shuffles by a condition")
    if "generator" in given and not isinstance(given["generator"], ast.Name | ast.Attribute):
        raise PlanError(f"line {call.lineno} makes the loader's generator, which two samplers cannot share")
    return given


def _check_statement(code: Code, call: ast.Call) -> None:
    """Raises PlanError where no line can be written before it, or the script reads what would change."""
    inner = list(code.names.around(call))
    statement = next(each for each in inner if isinstance(each, ast.stmt))
    inner = inner[: inner.index(statement)]
    if not isinstance(statement, _SIMPLE) or any(isinstance(each, (ast.Lambda, *COMPREHENSIONS)) for each in inner):
        raise PlanError(f"line {call.lineno} makes the loader within another statement")
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    names = {ast.unparse(each) for each in targets if each is not None}
    for node in code.all(ast.Attribute):
        owner = ast.unparse(node.value)
        if node.attr in _READ_BY_SCRIPTS and (owner in names or owner.lower().endswith("loader")):
            raise PlanError(f"line {node.lineno} reads {owner}.{node.attr}, which would be another one")


def _source(text: str, node: ast.expr) -> str:
    segment = ast.get_source_segment(text, node)
    if segment is None or "\n" in segment:
        raise PlanError(f"line {node.lineno} begins an argument of several lines")
    return segment


def _is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)


# ── the running script ──────────────────────────────────────────────────────────────────────────────────────────────


def why_not(running: RunningLoader) -> str:
    if running.loader is None:
        return "the steps read no DataLoader"
    if running.rebuilt_by:
        return f"{running.rebuilt_by} makes another loader from the sampler and the batch size of the script's own"
    if reason := _why_not_of(running.loader):
        return reason
    other = next(filter(None, map(_why_not_of, running.alike)), "")
    return f"the same line makes another loader: {other}" if other else ""


def _why_not_of(loader: Any) -> str:
    from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Subset, TensorDataset, default_collate

    is_plain = type(loader) is DataLoader and type(loader.batch_sampler) is BatchSampler
    if not is_plain or isinstance(loader.dataset, IterableDataset):
        return "the loader does not draw its batches from indices of a data set"
    if loader.collate_fn is not default_collate:
        return "the loader has a collate function of its own"
    dataset: Any = loader.dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset and not _only_indexes(dataset):
        return f"{type(dataset).__name__} does more for a sample than to index tensors or arrays"
    return "" if _gives_same_batches(loader.dataset) else "an index of several samples does not give their batch"


def _only_indexes(dataset: Any) -> bool:
    """Whether __getitem__ returns nothing but `self.NAME[index]`, of several in a tuple, list or dictionary."""
    try:
        tree = ast.parse(dedent(inspect.getsource(type(dataset).__getitem__)))
    except (OSError, TypeError, SyntaxError, AttributeError):
        return False
    function = tree.body[0]
    if not isinstance(function, ast.FunctionDef) or len(function.args.args) != 2:
        return False
    match [each for each in function.body if not _is_text(each)]:
        case [ast.Return(ast.expr() as value)]:
            parts = getattr(value, "elts", None) or getattr(value, "values", None) or [value]
            return all(_is_indexed(each, function.args.args[1].arg) for each in parts)
        case _:
            return False


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_indexed(node: ast.expr, index: str) -> bool:
    match node:
        case ast.Subscript(ast.Attribute(ast.Name("self"), _), ast.Name(name)):
            return name == index
        case _:
            return False


def _gives_same_batches(dataset: Any) -> bool:
    from torch.utils.data import default_collate, default_convert

    try:
        samples = len(dataset)
        indices = sorted({0, samples // 2, samples - 1})
        return _same(default_collate([dataset[each] for each in indices]), default_convert(dataset[indices]))
    except (LookupError, TypeError, ValueError, RuntimeError):  # a list is not indexed by a list
        return False


def _same(one: Any, other: Any) -> bool:
    import torch

    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return isinstance(one, list) and len(one) == len(other) and all(map(_same, one, other))


TECHNIQUE = ScriptTechnique(
    name="batches_by_index",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    preserves=Preserves.BITS,
    costs=(),
    source="https://docs.pytorch.org/docs/stable/data.html#disable-automatic-batching",
    edits=edits,
    why_not=why_not,
)
