"""Several ranks hold each layer together: some of its columns, rows, heads or words.

A pair of matrices with an element-wise function between them is divided so that its ranks communicate once in each
direction: the first by columns, so that each rank has a share of what lies between; the second by rows, whose products
are summed over the ranks. Attention heads are such a share. All other layers are computed by every rank, or by each for
its part of the sequence.

Shares are plain tensors, on which layers compute at full speed, and not torch's DTensors: a step takes 0.84 of the
time of torch's parallelize_module (records/parallel-tensor).

Source: Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.errors import HastenError, Misconfigured
from hasten.facts.ranks import Ranks
from hasten.parallel.collectives import copy_from_first
from hasten.parallel.grid import SHARES
from hasten.parallel.options import TensorOptions
from hasten.parallel.parity import Outcome, check_parity, failed_on_first_batch, gradients_of, noisy_weights
from hasten.parallel.sharding import Sharding, Split
from hasten.parallel.strategy import LossFunction, Strategy, Value, Window, Workload
from hasten.parallel.tensor.layer_divisions import (
    Columns,
    Division,
    Heads,
    Rows,
    Scores,
    Words,
    parameter_splits,
    qualified,
    size_to_divide,
)
from hasten.parallel.tensor.layer_exchange import Exchange, LayerExchange
from hasten.parallel.tensor.layer_patterns import is_packed
from hasten.parallel.tensor.sequence_parallel import divide_sequence
from hasten.parallel.tensor.sharded_attention import attention_of_shares

_FIX = (
    "name in columns the layers whose outputs are divided, in rows those that use these, and in heads what counts "
    "them; or remove sequence or vocabulary"
)


class TensorParallel:
    """over_data: the strategy of the ranks that hold the same shares, with another part of each batch.

    enter: keeps a context open until the run is closed.
    """

    def __init__(
        self,
        over_data: Strategy,
        options: TensorOptions,
        device: torch.device,
        workload: Workload,
        enter: Callable[[AbstractContextManager[Any]], Any],
    ) -> None:
        self.grid, self.notices = over_data.grid, over_data.notices
        self.sharding = over_data.sharding
        self._over_data, self._options, self._device, self._workload = over_data, options, device, workload
        self._enter = enter

    def prepare(self, model: nn.Module, loss: LossFunction) -> tuple[nn.Module, LossFunction]:
        model.to(self._device)
        copy_from_first([*model.parameters(), *model.buffers()], self.grid.all)
        loss_of_shares = self._loss_of_shares(loss)
        with noisy_weights(model, lambda name, whole: self.sharding.share(name, whole)):
            whole = self._outcome(model, loss)
            splits, partial = divide(model, self._options, self.grid.shares, self.grid.mesh)
            in_parts = self._over_data.sharding.in_parts
            self.sharding = Sharding(grid=self.grid, in_parts=in_parts, splits=splits, partial=partial)
            self._check(model, loss_of_shares, whole)
        return self._over_data.prepare(model, loss_of_shares)

    def forward_backward(self, window: Window, batch: Any, samples: int, last: bool) -> Tensor:
        return self._over_data.forward_backward(window, batch, samples, last)

    def forward(self, call: Callable[[Any], Any], batch: Any) -> Any:
        return self._over_data.forward(call, batch)

    def agree(self, compute: Callable[[], Value]) -> Value:
        return self._over_data.agree(compute)

    def _loss_of_shares(self, loss: LossFunction) -> LossFunction:
        if not any(isinstance(each, Scores) for each in self._options.divisions.values()):
            return loss
        from hasten.parallel.tensor.vocabulary import LossOfShares, loss_of_shares_enabled  # it takes a second to load

        self._enter(loss_of_shares_enabled())
        return LossOfShares(loss)

    def _check(self, model: nn.Module, loss: LossFunction, whole: Outcome) -> None:
        try:
            divided = self._outcome(model, loss)
        except HastenError:
            raise
        except Exception as error:
            raise failed_on_first_batch("the divided model", error, technique="tensor", fix=_FIX) from error
        check_parity(whole, divided, self.sharding, self._device, technique="tensor", fix=_FIX)

    def _outcome(self, model: nn.Module, loss: LossFunction) -> Outcome:
        """Without dropout, because shares draw other masks than the whole."""
        workload = self._workload
        with workload.untouched(model):
            model.eval()
            mean = workload.mean(workload.call(loss, model, workload.batch()))
            mean.backward()
            self.sharding.complete(model.named_parameters())
            return Outcome(loss=float(mean.detach()), gradients=gradients_of(model))


def divide(
    model: nn.Module, options: TensorOptions, ranks: Ranks, mesh: Any
) -> tuple[dict[str, Split], frozenset[str]]:
    """Divide layers over the ranks, in place; see Sharding.splits and Sharding.partial for what it returns.

    Raises Misconfigured for a layer that cannot be divided over so many ranks.
    """
    splits = dict[str, Split]()
    for name, division in options.divisions.items():
        module = model.get_submodule(name)
        _check_layer(name, module, division, ranks)
        splits |= {qualified(name, own): split for own, split in parameter_splits(module, division).items()}
    region = divide_sequence(model, options.sequence, splits, ranks) if options.sequence else None
    for name, division in options.divisions.items():
        exchange = region.exchange if region is not None and region.has(name) else Exchange(ranks)
        _divide_layer(model.get_submodule(name), division, exchange, ranks, mesh)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):  # nested tensors would drop the padding between layers
            module.use_nested_tensor = False
    _keep_shares(model, splits, ranks)
    return splits, frozenset() if region is None else region.partial


def _check_layer(name: str, module: nn.Module, division: Division, ranks: Ranks) -> None:
    what, number = size_to_divide(name, module, division)
    if number % ranks.size:
        raise Misconfigured(
            f"{what} = {number} cannot be divided over {ranks.size} processes",
            where="tensor",
            fix="choose a number of processes that divides it, or remove the layer from the plan",
        )
    if isinstance(module, nn.MultiheadAttention) and not is_packed(module):
        what = f"{name} has no packed query, key and value projection, or appends a key and value to each sequence"
        raise Misconfigured(what, where="tensor", fix="remove this layer from the plan")


def _keep_shares(model: nn.Module, splits: Mapping[str, Split], ranks: Ranks) -> None:
    """Replace the divided parameters' values by this rank's shares. Raises Misconfigured where one parameter has
    several names that are not divided alike."""
    names = dict[nn.Parameter, list[str]]()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    for same in names.values():
        if len({splits.get(name) for name in same}) > 1:
            alone = ", ".join(name for name in same if name in splits)
            what = f"{' and '.join(same)} are one tied parameter, but only {alone} would be divided"
            raise Misconfigured(what, where="tensor", fix="remove it from the plan, or name the others in the same way")
    for parameter, same in names.items():
        if (split := splits.get(same[0])) is not None:
            parameter.data = split.share(parameter.detach(), ranks)


def _divide_layer(module: Any, division: Division, exchange: LayerExchange, ranks: Ranks, mesh: Any) -> None:
    """New methods are those of the module, so that a copy of it uses its own weights."""
    if isinstance(division, Columns | Scores):
        module.register_forward_pre_hook(lambda _, given: (exchange.begin(given[0]), *given[1:]))
    if isinstance(division, Rows):
        module.forward = MethodType(_rows_forward(exchange), module)
    elif isinstance(division, Heads):
        setattr(module, division.attribute, getattr(module, division.attribute) // ranks.size)
        if isinstance(module, nn.MultiheadAttention):
            module.forward = MethodType(attention_of_shares(exchange), module)
    elif isinstance(division, Words | Scores):
        from hasten.parallel.tensor.vocabulary import embedding_of_shares, scores_in_shares  # it takes a second to load

        if isinstance(division, Words):
            module.forward = MethodType(embedding_of_shares(exchange, ranks), module)
        else:
            module.register_forward_hook(scores_in_shares(mesh[SHARES]))


def _rows_forward(exchange: LayerExchange) -> Callable[[nn.Linear, Tensor], Tensor]:
    def forward(self: nn.Linear, rows: Tensor) -> Tensor:
        summed = exchange.end(functional.linear(rows, self.weight))
        return summed if self.bias is None else summed + self.bias  # once, and not for each rank

    return forward
