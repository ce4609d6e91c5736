"""The user's loss with some of the model's blocks computed, and the others skipped.

What the model does around its blocks (embedding, positions, masks, a head) and what the loss does with it is the user's
own Python. torch's tracer for pipelines needs a model that torch.export can capture whole, so every stage calls all of
that code instead: a block before the stage returns its input, the stage's first block gets the tensor that the stage
before has sent, and at the first block after the stage an exception carries that block's input out of the loss.

Source: the stages of GPipe, Huang et al. 2019, arXiv:1811.06965.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from hasten.errors import JobError


class _EndOfStage(BaseException):  # no Exception, because the user's code may catch those
    def __init__(self, activation: Tensor) -> None:
        self.activation = activation


class PartialForward:
    """Wraps the forward methods of the blocks, in place.

    blocks: in the order of their calls; each is called once, with a tensor as its first argument, and returns a tensor.
    before: called with the number of a block that is about to compute. after: with that of one that has computed or was
        skipped.
    """

    def __init__(
        self, blocks: Sequence[nn.Module], before: Callable[[int], None], after: Callable[[int], None]
    ) -> None:
        self.blocks, self._before, self._after = blocks, before, after
        self._span, self._received, self._begun = range(0), None, False
        for number, block in enumerate(blocks):
            block.forward = partial(self._forward, number, block.forward)

    def run(self, span: range, received: Tensor | None, call: Callable[[], Any]) -> Any:
        """Call the loss with the blocks of the span. The input of the block after the span; what the call returned
        where there is none.

        received: what the span's first block gets in place of its first argument; None leaves that unchanged.
        """
        self._span, self._received, self._begun = span, received, False
        try:
            returned = call()
        except _EndOfStage as end:
            return end.activation
        finally:
            self._span, self._received = range(0), None
        if span.stop < len(self.blocks) or not self._begun:
            raise JobError("loss", "did not call every block of its model", "remove `pipeline` from the plan")
        return returned

    def _forward(self, number: int, forward: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        span = self._span
        if not span:
            raise JobError(
                "model",
                "is called outside of Job.loss, or recomputes a block itself, but this process has only some blocks",
                "use activation_checkpointing of the plan to recompute, or remove `pipeline` from the plan",
            )
        if number < span.start:
            self._after(number)
            return given[0]
        if number == span.stop:
            raise _EndOfStage(given[0])
        if number == span.start:
            self._begun = True
            if self._received is not None:
                given = (self._received.clone(), *given[1:])  # a block may write to its input
        self._before(number)
        found = forward(*given, **named)
        self._after(number)
        return found
