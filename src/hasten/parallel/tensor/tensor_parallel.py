"""Layers that several ranks hold together: each has some of their columns, rows, heads or words.

A pair of matrices with something between them that works on each element is divided so that its ranks talk once in each
direction: the first by its columns, so that each rank has a share of what lies between; the second by its rows, whose
products are summed over the ranks. Heads of an attention are such a share. What lies outside is the same on every rank,
and so are its gradients; or each rank has its part of a sequence of it.

Source: Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.errors import Misconfigured
from hasten.facts.ranks import Ranks
from hasten.parallel.grid import SHARES, Grid
from hasten.parallel.options import TensorOptions
from hasten.parallel.replicate.replicated import follow_the_leader
from hasten.parallel.tensor.layer_exchange import Between, Exchange
from hasten.parallel.tensor.layer_patterns import is_packed
from hasten.parallel.tensor.sequence_parallel import divide_sequence
from hasten.parallel.tensor.sharded_attention import attention_of_shares
from hasten.parallel.tensor.tensor_sharding import Divided, Split
from hasten.parallel.ways import Columns, Heads, Rows, Scores, Way, Words, below, size_to_divide, splits_of


def divide(model: nn.Module, options: TensorOptions, grid: Grid) -> Divided:
    """Let the ranks of a group hold layers together, in place: before anything else holds parameters. The model is that
    of the first of all ranks.

    Raises Misconfigured where a layer cannot be divided by their number.
    """
    ranks = grid.shares
    with torch.no_grad():  # a model need not be the same on each rank by itself
        follow_the_leader([*model.parameters(), *model.buffers()], grid.all)
    splits = _splits(model, options, ranks)
    for name, way in options.ways.items():
        if isinstance(way, Heads) and isinstance(module := model.get_submodule(name), nn.MultiheadAttention):
            _check_attention(name, module)
    region = divide_sequence(model, options.sequence, splits, ranks) if options.sequence else None
    for name, way in options.ways.items():
        between = region.between if region is not None and region.has(name) else Exchange(ranks)
        _DIVIDE[type(way)](model.get_submodule(name), way, between, grid)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):  # it would leave padding out of what it hands on
            module.use_nested_tensor = False
    _hold(model, splits, ranks)
    return Divided(splits, ranks, frozenset() if region is None else region.partial)


def _splits(model: nn.Module, options: TensorOptions, ranks: Ranks) -> dict[str, Split]:
    """Of all parameters that are divided, by name."""
    found = dict[str, Split]()
    for name, way in options.ways.items():
        module = model.get_submodule(name)
        _check_divisible(*size_to_divide(name, module, way), ranks)
        found |= {below(name, own): split for own, split in splits_of(module, way).items()}
    return found


def _hold(model: nn.Module, splits: dict[str, Split], ranks: Ranks) -> None:
    """Let modules hold this rank's shares alone; one share where they hold one parameter."""
    names = dict[int, list[str]]()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for same in names.values():
        found = {splits.get(name) for name in same}
        if len(found) > 1:
            alone = ", ".join(name for name in same if name in splits)
            what = f"{' and '.join(same)} are one, and only {alone} would be divided"
            raise Misconfigured(what, where="tensor", fix="leave that layer out, or name the others in the same way")
    for same in names.values():
        split = splits.get(same[0])
        if split is None:
            continue
        parameter = model.get_parameter(same[0])  # it stays itself, with all that hangs on it
        parameter.data = split.share(parameter.detach(), ranks)


def _check_divisible(what: str, number: int, ranks: Ranks) -> None:
    if number % ranks.size:
        raise Misconfigured(
            f"{what} = {number} cannot be divided over {ranks.size} processes",
            where="tensor",
            fix="choose a number of processes that divides it, or leave the layer out",
        )


def _check_attention(name: str, module: nn.MultiheadAttention) -> None:
    if not is_packed(module):
        what = f"{name} has no one matrix for queries, keys and values, or adds something to them"
        raise Misconfigured(what, where="tensor", fix="leave that layer out")


# ── one way each ────────────────────────────────────────────────────────────────────────────────────────────────────


def _columns(module: Any, way: Any, between: Between, grid: Grid) -> None:
    module.register_forward_pre_hook(lambda _, given: (between.begin(given[0]), *given[1:]))


def _rows(module: Any, way: Any, between: Between, grid: Grid) -> None:
    def forward(self: nn.Linear, rows: Tensor) -> Tensor:
        summed = between.end(functional.linear(rows, self.weight))
        return summed if self.bias is None else summed + self.bias  # once, and not for each rank

    module.forward = MethodType(forward, module)  # as a copy of the module has to compute with its own


def _heads(module: Any, way: Any, between: Between, grid: Grid) -> None:
    setattr(module, way.attribute, getattr(module, way.attribute) // grid.shares.size)
    if isinstance(module, nn.MultiheadAttention):
        module.forward = MethodType(attention_of_shares(between), module)


def _words(module: Any, way: Any, between: Between, grid: Grid) -> None:
    from hasten.parallel.tensor.vocabulary import embedding_of_shares  # few runs need it

    module.forward = MethodType(embedding_of_shares(between, grid.shares), module)


def _scores(module: Any, way: Any, between: Between, grid: Grid) -> None:
    from hasten.parallel.tensor.vocabulary import scores_in_shares  # it takes a second to load

    _columns(module, way, between, grid)
    assert grid.mesh is not None
    module.register_forward_hook(scores_in_shares(grid.mesh[SHARES]))


_DIVIDE: dict[type[Way], Callable[[Any, Any, Between, Grid], None]] = {
    Columns: _columns,
    Rows: _rows,
    Heads: _heads,
    Words: _words,
    Scores: _scores,
}
