"""Sequence parallelism: between divided layers, each rank computes its part of the sequence.

Norms, dropout and residual sums work on each item of a sequence by itself. So each rank computes them for its part, and
stores only that for its backward pass. The gradients of their parameters are summed over ranks before an update.

Source: Korthikanti et al. 2022, Reducing activation recomputation in large transformer models, arXiv:2205.05198.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hasten.errors import Misconfigured
from hasten.facts.ranks import Ranks
from hasten.parallel.tensor.layer_exchange import SequenceExchange

_BATCH_NORMS = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
_FIX = "remove `sequence`, or name blocks that are called one after another, with a tensor as first argument"


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """blocks: by name. partial: parameters in them that each rank holds whole."""

    exchange: SequenceExchange
    blocks: tuple[str, ...]
    partial: frozenset[str]

    def has(self, module: str) -> bool:
        return any(module == block or module.startswith(f"{block}.") for block in self.blocks)


def divide_sequence(model: nn.Module, blocks: Sequence[str], divided: Container[str], ranks: Ranks) -> Region:
    """Divide the sequence between these blocks' divided layers, in place.

    blocks: names, in the order of their calls. divided: names of parameters. Raises Misconfigured where a parameter
    belongs to the blocks and to something else.
    """
    modules = [model.get_submodule(name) for name in blocks]
    for name, block in zip(blocks, modules, strict=True):
        for below, each in block.named_modules():
            if isinstance(each, _BATCH_NORMS):  # parity is checked in evaluation mode, where it looks right
                what = f"{name}.{below} normalizes over the batch, but each rank has only its part of the sequences"
                raise Misconfigured(what, where="tensor", fix="leave `sequence` out")
    exchange = SequenceExchange(ranks, _dimension(modules))
    found = Region(exchange=exchange, blocks=tuple(blocks), partial=_partial(model, blocks, divided))
    modules[0].register_forward_pre_hook(lambda _, given: (exchange.enter(_stream(given)), *given[1:]))
    modules[-1].register_forward_hook(lambda _, given, gives: exchange.leave(_stream((gives,))))
    return found


def _partial(model: nn.Module, blocks: Sequence[str], divided: Container[str]) -> frozenset[str]:
    inside = {each for name in blocks for each in model.get_submodule(name).parameters()}
    found, names = set[str](), dict[nn.Parameter, str]()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        own = any(name.startswith(f"{block}.") for block in blocks)
        if parameter in inside and not own:
            raise Misconfigured(f"{name} is also a parameter of the blocks", where="tensor", fix=_FIX)
        first = names.setdefault(parameter, name)
        if own and name not in divided:
            found.add(first)
    return frozenset(found)


def _dimension(blocks: Sequence[nn.Module]) -> int:
    """The sequence's dimension in [batch, length, width]; torch's attention may have the length first."""
    attentions = [each for block in blocks for each in block.modules() if isinstance(each, nn.MultiheadAttention)]
    return 0 if attentions and not attentions[0].batch_first else 1


def _stream(given: Sequence[Any]) -> Tensor:
    if not given or not isinstance(given[0], Tensor) or given[0].dim() != 3:
        what = "the first argument or the result of a block is not a tensor [batch, length, width]"
        raise Misconfigured(what, where="tensor", fix=_FIX)
    return given[0]
