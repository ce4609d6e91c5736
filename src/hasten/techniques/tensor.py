"""Divide wide layers over neighbouring processes, by columns, rows or heads.

What it does: divides the layers that it knows over this many processes: those of torch's TransformerEncoderLayer, an
attention with one matrix for queries, keys and values, and two linear layers of a Sequential with an activation between
them, the first of which widens. Or it divides layers that are named: `columns = ["blocks.*.wide"]`, with the layers
that follow them in `rows = ["blocks.*.narrow"]`; `"blocks.*.qkv:3"` for three matrices stacked in one; and `heads =
["blocks.*.heads"]` for a number of heads that a module stores. These processes read the same samples.

Why it is faster: each process computes a part of every product. It also saves memory: a layer, its gradients and its
optimizer state are divided over the processes.

When it loses: processes wait for each other twice in each layer, forward and backward. Between machines, and for narrow
layers, that takes longer than the products.

What it gave up: nothing but rounding: products are summed in another order, under autocast in 16 bits. Dropout in a
divided layer drops the same positions in the part of each process. A loss that reads the model's weights, and an
optimizer that reads a whole matrix, would see parts; the first is refused where it changes the loss of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from hasten.errors import PlanError
from hasten.parallel.tensor.layer_divisions import Columns, Division, Heads, Rows
from hasten.parallel.tensor.layer_patterns import divisible, is_linear, is_number
from hasten.techniques.common.plan_values import is_whole, refused
from hasten.techniques.contract import Choice, No, Preserves, Setup, Stage, Symptom, Technique, Yes

_FIX = 'write the number of processes, 2 or more; as options columns, rows and heads, each a list such as ["*.wide"]'


def applies(setup: Setup) -> Yes | No:
    if not setup.ranks.many:
        return No("one process cannot divide a model; hasten train --nproc starts several")
    if not divisible(setup.model):
        reason = "the model has no layer that is known to be divisible; name some in columns, rows and heads"
        return No(reason, unless_named=True)
    return Yes()


def candidates(setup: Setup) -> Sequence[Choice]:
    size = setup.ranks.size
    sizes = [each for each in range(2, size + 1) if size % each == 0]
    return [Choice(technique="tensor", value=each, preserves=Preserves.ROUNDING) for each in sizes]


def apply(setup: Setup, choice: Choice) -> None:
    size, options = choice.value, dict(choice.options)
    sensible = all(name in _NAMED and isinstance(each, list) and each for name, each in options.items())
    if not is_whole(size, 2) or not sensible:
        raise refused(choice, _FIX)
    found = divisions_of(setup.model, options)
    if setup.ranks.many:
        setup.shares, setup.tensor = size, found


def divisions_of(model: nn.Module, options: Mapping[str, Any]) -> dict[str, Division]:
    """How layers are divided, by name: those that a plan's options name, or without any, those that are known to be
    divisible. Raises PlanError for a name that matches nothing, or a layer that is named in two ways."""
    if not options:
        return divisible(model)
    found = dict[str, Division]()
    for option, patterns in options.items():
        for pattern in map(str, patterns):
            named = dict(_NAMED[option](model, pattern))
            if not named:
                what = f"{option} names {pattern!r}, which matches nothing in the model"
                fix = "write names as model.named_modules() gives them, with * for any part"
                raise PlanError(what, where="tensor", fix=fix)
            for name, way in named.items():
                if found.setdefault(name, way) != way:
                    raise PlanError(f"{name} is named twice, to be divided in two ways", where="tensor", fix=_FIX)
    return found


def _columns(model: nn.Module, pattern: str) -> Iterator[tuple[str, Division]]:
    path, _, parts = pattern.partition(":")
    way = Columns(int(parts) if parts.isdecimal() and int(parts) else 1)
    yield from ((name, way) for name in _linear(model, path))


def _rows(model: nn.Module, pattern: str) -> Iterator[tuple[str, Division]]:
    yield from ((name, Rows()) for name in _linear(model, pattern))


def _linear(model: nn.Module, pattern: str) -> Iterator[str]:
    yield from (name for name, module in model.named_modules() if is_linear(module) and fnmatchcase(name, pattern))


def _heads(model: nn.Module, pattern: str) -> Iterator[tuple[str, Division]]:
    path, _, attribute = pattern.rpartition(".")
    for name, module in model.named_modules():
        if fnmatchcase(name, path) and is_number(getattr(module, attribute, None)):
            yield name, Heads(attribute)


_NAMED = {"columns": _columns, "rows": _rows, "heads": _heads}

TECHNIQUE = Technique(
    name="tensor",
    stage=Stage.CLUSTER,
    treats=Symptom.MEMORY_FULL,
    values="a whole number, 2 or more; columns, rows and heads = lists of names",
    costs=("processes wait for each other in every layer that they divide", "gathers shares of the weights at the end"),
    source="https://arxiv.org/abs/1909.08053",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
