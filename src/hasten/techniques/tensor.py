"""Divide wide layers over neighbouring processes, by columns, rows or heads.

What it does: divides layers over this many processes, which read the same samples. Without options it divides the
layers that it knows: those of torch's TransformerEncoderLayer, an attention with one matrix for queries, keys and
values, and two linear layers of a Sequential with an activation between them, the first of which widens.

Options: lists of module names, in which `*` matches any part of a name. `columns` divides linear layers, and `rows` the
layers that follow them. `"*.qkv:3"` in `columns` means three matrices in one. `heads` names attributes that store a
number of heads, such as "blocks.*.heads". `vocabulary` divides an embedding, and an output layer whose scores go to a
cross-entropy. With `sequence = true`, or a list of blocks, each process computes a part of the sequence between the
divided layers of these blocks.

Why it is faster: each process computes a part of every product. Divided layers, their gradients and their optimizer
state also take less memory.

When it loses: processes wait for each other twice in each layer, forward and backward. Between machines, and for narrow
layers, that takes longer than the products.

What it changes: rounding only ("equal up to rounding"): products are summed in another order, under autocast in 16
bits. Dropout in a divided layer drops the same positions in the part of each process.

Limits: it needs several processes. A loss that reads divided weights is refused where that changes the loss of a batch.
An optimizer that reads a whole matrix would see only a part. A plan cannot combine it with `compile` or fp16.

Example:

    [[choice]]
    technique = "tensor"
    value = 2
    options = { columns = ["blocks.*.wide"], rows = ["blocks.*.narrow"] }
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.parallel.options import TensorOptions
from hasten.parallel.repeated_blocks import repeated_blocks
from hasten.parallel.tensor.layer_divisions import Columns, Division, Heads, Rows
from hasten.parallel.tensor.layer_patterns import divisible, is_linear, is_number, vocabulary_of
from hasten.techniques.common.plan_values import is_whole, refused
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

_SEQUENCE = "sequence"
_FIX = (
    "write the number of processes, 2 or more; as options columns, rows, heads, vocabulary and sequence, each a list "
    'such as ["*.wide"]; or sequence = true'
)


def applies(setup: Setup) -> Yes | No:
    if not setup.ranks.many:
        return No("one process cannot divide a model; hasten train --nproc starts several")
    reason = "no layer of the model is known to be divisible; name layers in columns, rows or heads"
    return Yes() if divisible(setup.model) else No(reason, unless_named=True)


def candidates(setup: Setup) -> Sequence[Choice]:
    size = setup.ranks.size
    sizes = [each for each in range(2, size + 1) if size % each == 0]
    return [Choice(technique="tensor", value=each, preserves=Preserves.ROUNDING) for each in sizes]


def apply(setup: Setup, choice: Choice) -> None:
    size, options = choice.value, dict(choice.options)
    if not is_whole(size, 2) or not all(_makes_sense(*each) for each in options.items()):
        raise refused(choice, _FIX)
    found = options_of(setup.model, options)
    if setup.ranks.many:
        setup.shares, setup.tensor = size, found


def options_of(model: nn.Module, options: Mapping[str, Any]) -> TensorOptions:
    """The meaning of a plan's options for a model. Raises PlanError for a name that matches nothing in it."""
    ways, sequence = dict[str, Division](), options.get(_SEQUENCE, False)
    for option in options.keys() - {_SEQUENCE}:
        for name, way in _named(model, option, options[option]):
            if ways.setdefault(name, way) != way:
                raise PlanError(f"{name} is named twice, to be divided in two ways", where="tensor", fix=_FIX)
    if not options.keys() - {_SEQUENCE, "vocabulary"}:
        ways = divisible(model) | ways
    named = dict(_named(model, _SEQUENCE, sequence if isinstance(sequence, list) else ()))
    outermost = [name for name, _ in model.named_modules() if name in named and name.rpartition(".")[0] not in named]
    blocks = repeated_blocks(model) if sequence is True else outermost
    if sequence and not blocks:
        raise PlanError("the model repeats no blocks", where="tensor", fix=f"{_SEQUENCE} = a list of names")
    return TensorOptions(divisions=ways, sequence=tuple(blocks))


def _makes_sense(option: str, value: Any) -> bool:
    if option == _SEQUENCE and isinstance(value, bool):
        return True
    return option in _WAYS and isinstance(value, list) and bool(value)


def _named(model: nn.Module, option: str, patterns: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The modules that an option names, and how each is divided. Raises PlanError for a pattern that matches none."""
    for pattern in map(str, patterns):
        found = [(name, _WAYS[option](name, each, pattern)) for name, each in model.named_modules() if name]
        if all(way is None for _, way in found):
            fix = "write names as model.named_modules() gives them, with * for any part"
            raise PlanError(f"{option} names {pattern!r}, which matches nothing in the model", where="tensor", fix=fix)
        yield from ((name, way) for name, way in found if way is not None)


def _columns(name: str, module: nn.Module, pattern: str) -> Columns | None:
    path, _, parts = pattern.partition(":")
    way = Columns(int(parts) if parts.isdecimal() and int(parts) else 1)
    return way if is_linear(module) and fnmatchcase(name, path) else None


def _heads(name: str, module: nn.Module, pattern: str) -> Heads | None:
    path, _, attribute = pattern.rpartition(".")
    counts = fnmatchcase(name, path) and is_number(getattr(module, attribute, None))
    return Heads(attribute) if counts else None


_WAYS: Mapping[str, Callable[[str, nn.Module, str], Any]] = {
    "columns": _columns,
    "rows": lambda name, module, pattern: Rows() if is_linear(module) and fnmatchcase(name, pattern) else None,
    "heads": _heads,
    "vocabulary": lambda name, module, pattern: vocabulary_of(module) if fnmatchcase(name, pattern) else None,
    _SEQUENCE: lambda name, module, pattern: name if fnmatchcase(name, pattern) else None,
}


TECHNIQUE = Technique(
    name="tensor",
    stage=Stage.CLUSTER,
    treats=Symptom.MEMORY_FULL,
    values="a whole number, 2 or more: the processes; options: columns, rows, heads, vocabulary, sequence",
    costs=("processes wait for each other in every divided layer", "gathers the weights at the end of the run"),
    source="https://arxiv.org/abs/1909.08053",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
