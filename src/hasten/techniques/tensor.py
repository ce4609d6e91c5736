"""Divide wide layers over neighbouring processes, by columns, rows or heads.

What it does: divides the layers that it knows over this many processes: those of torch's TransformerEncoderLayer, an
attention with one matrix for queries, keys and values, and two linear layers of a Sequential with an activation between
them, the first of which widens. Or it divides layers that are named: `columns = ["blocks.*.wide"]`, with the layers
that follow them in `rows = ["blocks.*.narrow"]`; `"blocks.*.qkv:3"` for three matrices stacked in one; and `heads =
["blocks.*.heads"]` for a number of heads that a module stores. These processes read the same samples. `vocabulary =
["words", "head"]` divides an embedding, and an output layer whose scores go to a cross-entropy. With `sequence = true`
each process computes its part of a sequence between the divided layers of the model's blocks.

Why it is faster: each process computes a part of every product. It also saves memory: a layer, its gradients and its
optimizer state are divided over the processes.

When it loses: processes wait for each other twice in each layer, forward and backward. Between machines, and for narrow
layers, that takes longer than the products.

What it gave up: nothing but rounding: products are summed in another order, under autocast in 16 bits. Dropout in a
divided layer drops the same positions in the part of each process. A loss that reads the model's weights, and an
optimizer that reads a whole matrix, would see parts; the first is refused where it changes the loss of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from hasten.errors import PlanError
from hasten.parallel.options import TensorOptions
from hasten.parallel.repeated_blocks import repeated_blocks
from hasten.parallel.tensor.layer_divisions import Division
from hasten.parallel.tensor.layer_patterns import divisible
from hasten.techniques.common.plan_values import is_whole, refused
from hasten.techniques.common.tensor_names import LAYERS, VOCABULARY, matching, named
from hasten.techniques.contract import Choice, No, Preserves, Setup, Stage, Symptom, Technique, Yes

_SEQUENCE = "sequence"
_FIX = (
    "write the number of processes, 2 or more; as options columns, rows, heads, vocabulary and sequence, each a list "
    'such as ["*.wide"]; or sequence = true'
)


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
    if not is_whole(size, 2) or not all(_makes_sense(*each) for each in options.items()):
        raise refused(choice, _FIX)
    found = options_of(setup.model, options)
    if setup.ranks.many:
        setup.shares, setup.tensor = size, found


def options_of(model: nn.Module, options: Mapping[str, Any]) -> TensorOptions:
    """The meaning of a plan's options for a model. Raises PlanError for a name that matches nothing in it."""
    ways = _once(named(model, {name: each for name, each in options.items() if name != _SEQUENCE}))
    if not options.keys() & LAYERS.keys():
        ways |= {name: way for name, way in divisible(model).items() if name not in ways}
    sequence = options.get(_SEQUENCE, False)
    blocks = repeated_blocks(model) if sequence is True else matching(model, sequence or ())
    if sequence and not blocks:
        raise PlanError("the model repeats no blocks", where="tensor", fix=f"{_SEQUENCE} = a list of names")
    return TensorOptions(divisions=ways, sequence=tuple(blocks))


def _makes_sense(option: str, value: Any) -> bool:
    if option == _SEQUENCE and isinstance(value, bool):
        return True
    return option in (*LAYERS, VOCABULARY, _SEQUENCE) and isinstance(value, list) and bool(value)


def _once(ways: Iterable[tuple[str, Division]]) -> dict[str, Division]:
    found = dict[str, Division]()
    for name, way in ways:
        if found.setdefault(name, way) != way:
            raise PlanError(f"{name} is named twice, to be divided in two ways", where="tensor", fix=_FIX)
    return found


TECHNIQUE = Technique(
    name="tensor",
    stage=Stage.CLUSTER,
    treats=Symptom.MEMORY_FULL,
    values="a whole number, 2 or more; columns, rows, heads, vocabulary and sequence = lists of names",
    costs=("processes wait for each other in every layer that they divide", "gathers shares of the weights at the end"),
    source="https://arxiv.org/abs/1909.08053",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
