"""Which parameters a model uses before the blocks that it repeats, and which behind them: one stage of a pipeline has
them alone. What a block is given beside what the one before it returned, all stages compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hasten.parallel.reached import reached

AROUND, BEFORE, BEHIND = "", "before the blocks", "behind the blocks"  # what no block has; none has such a name


def sides_of(differentiated: Callable[[], Tensor], model: nn.Module, blocks: Sequence[str]) -> Mapping[str, str]:
    """BEFORE or BEHIND by the names of trained parameters, without those that are used on both sides, or in between.

    differentiated: calls the model once, and gives what a backward pass begins at.
    """
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    entered, left = list[list[Any]](), list[list[Any]]()
    with ExitStack() as hooks:
        for block in map(model.get_submodule, blocks):
            enter = block.register_forward_pre_hook(
                lambda _, given, named: entered.append(tree_leaves((given, named))), with_kwargs=True
            )
            leave = block.register_forward_hook(lambda _, given, gives: left.append(tree_leaves(gives)))
            hooks.callback(enter.remove)
            hooks.callback(leave.remove)
        total = differentiated()
    if not entered or len(entered) != len(left):
        return {}
    before, behind = reached(entered[0], trained), reached([total], trained, _tensors(left[-1]))
    pairs = zip(left[:-1], entered[1:], strict=True)
    between = {name for gives, given in pairs for name in reached(given, trained, _tensors(gives))}
    once = (before ^ behind) - between
    return {name: BEFORE if name in before else BEHIND for name in once}


def _tensors(leaves: Sequence[Any]) -> list[Tensor]:
    return [each for each in leaves if isinstance(each, Tensor)]
