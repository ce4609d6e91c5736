"""Layers that several ranks hold together: each has some of their columns, rows or heads.

A pair of matrices with something between them that works on each element is divided so that its ranks talk once in each
direction: the first by its columns, so that each rank has a share of what lies between; the second by its rows, whose
products are summed over the ranks. Heads of an attention are such a share. What lies outside is the same on every rank,
and so are its gradients.

Source: Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from hasten.errors import Misconfigured
from hasten.facts.ranks import Ranks
from hasten.parallel.divided import Divided, Split
from hasten.parallel.replicate import follow_the_leader
from hasten.parallel.tensor_patterns import Columns, Heads, Rows, Way, is_packed


def divide(model: nn.Module, ways: Iterable[tuple[str, Way]], together: Ranks, every: Ranks) -> Divided:
    """Let the ranks that are `together` hold the layers of these names together, in place: before anything else holds
    parameters. The model is that of the first of `every` rank.

    Raises Misconfigured where a layer cannot be divided by their number.
    """
    with torch.no_grad():  # a model need not be the same on each rank by itself
        follow_the_leader([*model.parameters(), *model.buffers()], every)
    splits, shared = dict[str, Split](), _shared(model)
    for name, way in ways:
        module = model.get_submodule(name)
        _refuse_shared(name, module, shared)
        for parameter, split in _DIVIDE[type(way)](name, module, way, together).items():
            splits[f"{name}.{parameter}" if name else parameter] = split
    return Divided(splits, together)


def _columns(name: str, module: Any, way: Any, ranks: Ranks) -> dict[str, Split]:
    check_divisible(f"{name}.out_features", module.out_features // way.parts, ranks)
    module.register_forward_pre_hook(lambda _, given: (_copied(given[0], ranks), *given[1:]))
    return _held(module, ranks, {"weight": Split(0, way.parts), "bias": Split(0, way.parts)})


def _rows(name: str, module: Any, way: Any, ranks: Ranks) -> dict[str, Split]:
    check_divisible(f"{name}.in_features", module.in_features, ranks)

    def forward(self: nn.Linear, rows: Tensor) -> Tensor:
        summed = _summed(functional.linear(rows, self.weight), ranks)
        return summed if self.bias is None else summed + self.bias  # once, and not for each rank

    module.forward = MethodType(forward, module)  # as a copy of the module has to compute with its own
    return _held(module, ranks, {"weight": Split(1)})


def _heads(name: str, module: Any, way: Any, ranks: Ranks) -> dict[str, Split]:
    heads = getattr(module, way.attribute)
    check_divisible(f"{name}.{way.attribute}", heads, ranks)
    setattr(module, way.attribute, heads // ranks.size)
    if not isinstance(module, nn.MultiheadAttention):
        return {}
    if not is_packed(module):
        what = f"{name} has no one matrix for queries, keys and values, or adds something to them"
        raise Misconfigured(what, where="tensor", fix="leave that layer out")
    module.forward = MethodType(_attention(ranks), module)
    of_rows = _held(module.out_proj, ranks, {"weight": Split(1)})
    return {
        **_held(module, ranks, {"in_proj_weight": Split(0, 3), "in_proj_bias": Split(0, 3)}),
        **{f"out_proj.{parameter}": split for parameter, split in of_rows.items()},
    }


def _attention(ranks: Ranks) -> Callable[..., tuple[Tensor, None]]:
    """Its forward pass on this rank's heads, as torch computes it on all of them. torch's own asks for a width that is
    that of all heads."""

    def forward(
        module: nn.MultiheadAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        if need_weights:
            raise Misconfigured(
                "attention weights are asked for, and each process has those of its own heads alone",
                where="tensor",
                fix="call the layer with need_weights=False",
            )
        copied = {id(each): _copied(each, ranks) for each in (query, key, value)}  # once where they are the same
        asked = [copied[id(each)] for each in (query, key, value)]
        weight, bias = module.in_proj_weight, module.in_proj_bias
        if not module.batch_first and query.dim() == 3:
            asked = [each.transpose(0, 1) for each in asked]
        weights, biases = weight.chunk(3), bias.chunk(3) if bias is not None else (None,) * 3
        own, keys, values = (
            functional.linear(each, part, extra).unflatten(-1, (module.num_heads, -1)).transpose(-2, -3)
            for each, part, extra in zip(asked, weights, biases, strict=True)
        )
        mask = _mask(
            query.dtype, key_padding_mask, None if is_causal and key_padding_mask is None else attn_mask, module
        )
        causal, dropout = is_causal and mask is None, module.dropout if module.training else 0.0
        found = functional.scaled_dot_product_attention(own, keys, values, mask, dropout, causal)
        summed = _summed(functional.linear(found.transpose(-2, -3).flatten(-2), module.out_proj.weight), ranks)
        if module.out_proj.bias is not None:
            summed = summed + module.out_proj.bias
        return summed.transpose(0, 1) if not module.batch_first and query.dim() == 3 else summed, None

    return forward


def _mask(
    dtype: torch.dtype, padding: Tensor | None, attention: Tensor | None, module: nn.MultiheadAttention
) -> Tensor | None:
    """What is added to the scores, of a shape that spreads over [batch, heads, queries, keys]; None for nothing."""
    padding, attention = _added(padding, dtype), _added(attention, dtype)
    if attention is not None and attention.dim() == 3:  # one for each head of each sample; there are others elsewhere
        raise Misconfigured(
            "an attention mask for each head is given, and each process has some heads alone",
            where="tensor",
            fix="give one mask for all heads",
        )
    if padding is not None:
        padding = padding[..., None, None, :]
    return padding if attention is None else attention if padding is None else attention + padding


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))


def check_divisible(what: str, number: int, ranks: Ranks) -> None:
    if number % ranks.size:
        raise Misconfigured(
            f"{what} = {number} cannot be divided over {ranks.size} processes",
            where="tensor",
            fix="choose a number of processes that divides it, or leave the layer out",
        )


def _held(module: nn.Module, ranks: Ranks, splits: dict[str, Split]) -> dict[str, Split]:
    """Let the module hold this rank's shares alone; those of parameters that it has."""
    found = {name: split for name, split in splits.items() if module._parameters.get(name) is not None}
    for name, split in found.items():
        whole: Any = module._parameters[name]
        module._parameters[name] = nn.Parameter(split.share(whole.detach(), ranks), whole.requires_grad)
    return found


def _shared(model: nn.Module) -> dict[int, list[str]]:
    """The names of each parameter that has more than one, by its id."""
    names = dict[int, list[str]]()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {key: each for key, each in names.items() if len(each) > 1}


def _refuse_shared(name: str, module: nn.Module, shared: dict[int, list[str]]) -> None:
    own = module.parameters() if isinstance(module, nn.MultiheadAttention) else module._parameters.values()
    for parameter in own:
        if id(parameter) in shared:
            raise Misconfigured(
                f"{' and '.join(shared[id(parameter)])} are one, and only {name} would be divided",
                where="tensor",
                fix="leave that layer out",
            )


class _Copy(torch.autograd.Function):
    """What every rank has, given to shares: their gradients are summed."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _total(gradients[0], ctx.ranks), None


class _Sum(torch.autograd.Function):
    """Of what shares have computed; every rank has it, and its gradient, whole."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks) -> Tensor:
        return _total(rows, ranks)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _copied(rows: Tensor, ranks: Ranks) -> Tensor:
    return _Copy.apply(rows, ranks)  # pyright: ignore[reportReturnType]


def _summed(rows: Tensor, ranks: Ranks) -> Tensor:
    return _Sum.apply(rows, ranks)  # pyright: ignore[reportReturnType]


def _total(rows: Tensor, ranks: Ranks) -> Tensor:
    total = rows.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=ranks.group)
    return total


_DIVIDE: dict[type[Way], Callable[[str, Any, Any, Ranks], dict[str, Split]]] = {
    Columns: _columns,
    Rows: _rows,
    Heads: _heads,
}
