"""A model whose forward pass computes some of its blocks, and passes over the others.

The loss and the model are the user's own Python, and what lies between them and the blocks is not known: positions,
masks, norms, a head. So every stage calls all of it. Blocks before a stage's own give back what they are given; its
first one is given what came from the stage before; and where the first block behind its own is called, a private
exception carries out of the loss what that was given.

Source: the stages of GPipe, Huang et al. 2019, arXiv:1811.06965.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from hasten.errors import JobError


class _Reached(BaseException):  # no Exception, as a user's code may catch those
    def __init__(self, given: Tensor) -> None:
        self.given = given


class Passing:
    """blocks: of the model, in the order of their calls; each is called once, with a tensor in first. It wraps their
    forward methods in place."""

    def __init__(
        self, blocks: Sequence[nn.Module], before: Callable[[int], None], behind: Callable[[int], None]
    ) -> None:
        """before: called with the number of a block that is about to compute. behind: with that of one that has
        computed, or was passed over."""
        self.blocks, self._before, self._behind = blocks, before, behind
        self._span, self._received, self._begun = range(0), None, False
        self._at_block: Callable[[int], None] | None = None
        for number, block in enumerate(blocks):
            block.forward = partial(self._forward, number, block.forward)

    def through(
        self, span: range, received: Tensor | None, call: Callable[[], Any], at_block: Callable[[int], None] | None
    ) -> Any:
        """Call the loss on the blocks of the span alone. What the block behind it is given; what the call returned,
        where there is none.

        received: what the first of them is given in place of its first argument; None leaves that as it is. at_block:
        called with the number of each block where it is called, up to the first of the span; None for nothing.
        """
        self._span, self._received, self._begun, self._at_block = span, received, False, at_block
        try:
            found = call()
        except _Reached as reached:
            return reached.given
        finally:
            self._span, self._received, self._at_block = range(0), None, None
        if span.stop < len(self.blocks) or not self._begun:
            raise JobError("loss", "did not call every block of its model", "leave `pipeline` out of the plan")
        return found

    def _forward(self, number: int, forward: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        span = self._span
        if not span:
            raise JobError(
                "model",
                "is called outside of its loss, or recomputes a block by itself, and this process has a part of it",
                "let activation_checkpointing in the plan recompute, or leave `pipeline` out of it",
            )
        if self._at_block is not None and number <= span.start:
            self._at_block(number)
        if number < span.start:
            self._behind(number)
            return given[0]
        if number == span.stop:
            raise _Reached(given[0])
        if number == span.start:
            self._begun = True
            if self._received is not None:
                given = (self._received.clone(), *given[1:])  # a block may write to what it is given
        self._before(number)
        found = forward(*given, **named)
        self._behind(number)
        return found
