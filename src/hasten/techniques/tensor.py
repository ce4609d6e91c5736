"""Let neighbouring processes hold wide layers together, each some of their columns, rows or heads.

What it does: divides the layers that it knows over so many processes: those of torch's TransformerEncoderLayer, an
attention whose one matrix makes queries, keys and values, and two linear layers of a Sequential with an activation
between them, the first of which widens. Or those that are named: `columns = ["blocks.*.wide"]`, with the layers that
follow them in `rows = ["blocks.*.narrow"]`; `"blocks.*.qkv:3"` for three matrices behind each other in one; and
`heads = ["blocks.*.heads"]` for a number of heads that a module keeps. These processes read the same samples.

Why it is faster: each process computes a part of every product. And it makes room: a layer, its gradients and its
optimizer's state take so many times less on each.

When it loses: its processes wait for each other twice in each layer, forward and backward. Between machines, and where
layers are narrow, that takes longer than the products.

What it gave up: nothing but rounding, as products are summed in another order, and under autocast in 16 bits. What
dropout leaves out of a divided layer is alike in the share of each process. A loss that reads the model's weights, and
an optimizer that looks at a whole matrix, would see shares: the first is refused where it shows in the loss of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.parallel.tensor_patterns import Columns, Heads, Rows, Way, divisible, is_linear, is_number
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

_FIX = 'write the number of processes, 2 or more; as options columns, rows and heads, each a list such as ["*.wide"]'


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if not setup.ranks.many:
        return No("one process has nobody to share with; hasten train --nproc starts several")
    if not divisible(setup.model):
        return No("the model has no layer that is known to be divisible; name some: columns, rows and heads")
    return Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    size = setup.ranks.size
    sizes = [each for each in range(2, size + 1) if size % each == 0]
    return [Choice(technique="tensor", value=each, preserves=Preserves.ROUNDING) for each in sizes]


def apply(setup: Setup, choice: Choice) -> None:
    size, options = choice.value, dict(choice.options)
    known = isinstance(size, int) and not isinstance(size, bool) and size > 1 and options.keys() <= _NAMED.keys()
    if not known or not all(isinstance(each, list) and each for each in options.values()):
        raise PlanError(f"the plan asks for {choice}", where="tensor", fix=_FIX)
    ways = _once(named(setup.model, options)) if options else divisible(setup.model)
    if setup.ranks.many:
        setup.together, setup.tensor = int(size), ways  # pyright: ignore[reportArgumentType]


def named(model: nn.Module, options: Mapping[str, Any]) -> Iterator[tuple[str, Way]]:
    """Layers that a plan names, and how they are divided. Raises PlanError for a name that is none of the model's."""
    for option, patterns in options.items():
        for pattern in map(str, patterns):
            found = [*_NAMED[option](model, pattern)]
            if not found:
                raise PlanError(f"{option} names {pattern!r}, which nothing in the model is", where="tensor", fix=_FIX)
            yield from found


def _once(ways: Iterable[tuple[str, Way]]) -> dict[str, Way]:
    found = dict[str, Way]()
    for name, way in ways:
        if found.setdefault(name, way) != way:
            raise PlanError(f"{name} is named twice, to be divided in two ways", where="tensor", fix=_FIX)
    return found


def _linear(model: nn.Module, pattern: str) -> Iterator[str]:
    for name, module in model.named_modules():
        if is_linear(module) and fnmatchcase(name, pattern):
            yield name


def _columns(model: nn.Module, pattern: str) -> Iterator[tuple[str, Way]]:
    path, _, parts = pattern.partition(":")
    way = Columns(int(parts) if parts.isdecimal() and int(parts) else 1)
    yield from ((name, way) for name in _linear(model, path))


def _rows(model: nn.Module, pattern: str) -> Iterator[tuple[str, Way]]:
    yield from ((name, Rows()) for name in _linear(model, pattern))


def _heads(model: nn.Module, pattern: str) -> Iterator[tuple[str, Way]]:
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
