"""Each stage of a pipeline computed alone, as training will, and compared with what the whole model has computed.

From what its first block was given in the whole. What a stage hands on has to be what the next block was given, and the
last one's loss the loss; a prediction, a target and the buffers that it moves have to be what they were; and gradients
have to go where they went. Buffers and numbers that another stage moves must not matter to it: microbatches pass
through stages in another order than through the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hasten.facts.job import Loss
from hasten.parallel.far import EMPTY, WAYS, Way
from hasten.parallel.pipeline.pipelined import Pipeline
from hasten.parallel.python_state import Moved
from hasten.parallel.replicate.replicated import gather_over_ranks
from hasten.training.gradient_paths import reached_from
from hasten.training.row_of_blocks import FIX, Look, WholePass, refused

_SHOWN = 3
_PICKED_OTHERWISE = 0.01  # of the elements, at most
_IN_ONE_GO = f'{FIX}; "1f1b" may do, in which each process takes all of its blocks in one go'


class _Reason(NamedTuple):
    """by_order: it is one because stages of one process take microbatches in turns."""

    what: str
    by_order: bool = False


def check_stages(look: Look, pipeline: Pipeline) -> None:
    """Raises Misconfigured, on all ranks, where a stage alone does not compute what it did in the whole."""
    own = pipeline.parts.own
    reasons = [_cut_off(look, pipeline, stage) for stage in own if stage]
    reasons += [_differs(look, pipeline, stage, training) for stage in own for training in (True, False)]
    reasons += [_read_too_early(look, pipeline, stage) for stage in own]
    found = gather_over_ranks(filter(None, reasons), look.run.grid.all, look.run.device)
    if found:
        raise refused(found[0].what, _IN_ONE_GO if found[0].by_order else FIX)
    look.forget()
    pipeline.left_early.forget()


def _cut_off(look: Look, pipeline: Pipeline, stage: int) -> _Reason | None:
    first = look.names[pipeline.parts.spans[stage].start]
    if not any(first in each.cut_off for each in look.passes[True]):
        return None
    return _Reason(f"no gradient of the loss reaches what {first} is given, and the stage before it is to have one")


def _differs(look: Look, pipeline: Pipeline, stage: int, training: bool) -> _Reason | None:
    first = look.names[pipeline.parts.spans[stage].start]
    when = "" if training else " while it evaluates"
    others = [(name, each) for name, each in look.run.model.named_parameters() if not pipeline.owners.has(name)]
    try:
        with look.alone(training) as begin:
            for number, whole in enumerate(look.passes[training]):
                begin()
                found = pipeline.compute(stage, _received(whole, first, training) if stage else None, look.batch)
                if training and (read := reached_from(_total(found), others)):
                    return _Reason(f"the loss reads {', '.join(read[:_SHOWN])}, which another process has")
                if other := _other(look, pipeline, stage, found, whole):
                    again = " in a second call" if number else ""
                    what = f"{other} does not follow from what {first} is given{again}{when}"
                    return _Reason(what, by_order=number > 0 and len(pipeline.parts.own) > 1)
    except Exception as error:
        return _Reason(f"stage {stage + 1} cannot be computed alone{when}: {_told(error)}")
    return None


class _Elsewhere(NamedTuple):
    """What a call moves around the blocks and a stage alone does not. kept: in Python."""

    buffers: list[str]
    kept: list[Moved]


def _read_too_early(look: Look, pipeline: Pipeline, stage: int) -> _Reason | None:
    """Whether it depends on a buffer, or on what Python keeps around the blocks, that is moved in a call, but not by
    this stage."""
    try:
        near, elsewhere = _moved_elsewhere(look, pipeline, stage)
    except Exception as error:
        return _Reason(f"stage {stage + 1} cannot be computed alone: {_told(error)}")
    if any(elsewhere) and _depends(look, pipeline, stage, elsewhere, near):
        names = ", ".join([*elsewhere.buffers, *sorted(map(look.python.named, elsewhere.kept))][:_SHOWN])
        what = f"stage {stage + 1} depends on {names}, which a call of the loss moves elsewhere"
        return _Reason(what, by_order=len(pipeline.parts.own) > 1)
    return None


def _moved_elsewhere(look: Look, pipeline: Pipeline, stage: int) -> tuple[list[Tensor], _Elsewhere]:
    """What the stage computes; and what it leaves otherwise than the whole does."""
    first, last = look.passes[True][0], look.passes[True][-1]
    in_blocks = {module for block in pipeline.parts.passing.blocks for module in block.modules()}
    with look.alone(training=True) as begin:
        before = {name: each.clone() for name, each in _around(look, pipeline).items()}
        begin()
        found = _computed(look, pipeline, stage)
        now, python = dict(look.run.model.named_buffers()), look.python.read()
        stay = [name for name, each in before.items() if name in now and _alike(now[name], each)]
    counted = [each for each in look.counted if not look.python.lies_in(each, in_blocks)]
    return found, _Elsewhere(
        [name for name in stay if not _alike(last.buffers[name], before[name])],
        [each for each in counted if not look.python.alike(each, python, first.python)],
    )


def _depends(look: Look, pipeline: Pipeline, stage: int, elsewhere: _Elsewhere, near: list[Tensor]) -> bool:
    """Whether the stage computes something else where these have moved before."""
    raised = 0
    for way in WAYS:
        with look.alone(training=True) as begin:
            begin()
            held = _around(look, pipeline)
            try:
                for name in elsewhere.buffers:
                    _put_far(held[name], way)
                for each in elsewhere.kept:
                    look.python.put_far(each, look.passes[True][-1].python, way)
                found = _computed(look, pipeline, stage)
            except Exception as error:
                if isinstance(error, LookupError) and way is not EMPTY:  # it asks for a place in a table
                    return True
                raised += 1  # no answer: a log may print a root, or what came last, which is not always there
                continue
            if not all(map(_alike, found, near)):
                return True
    return raised == len(WAYS)


def _around(look: Look, pipeline: Pipeline) -> dict[str, Tensor]:
    """Buffers that lie in no block."""
    return {name: each for name, each in look.run.model.named_buffers() if name not in pipeline.owners.buffers}


def _computed(look: Look, pipeline: Pipeline, stage: int) -> list[Tensor]:
    first = look.names[pipeline.parts.spans[stage].start]
    given = _received(look.passes[True][0], first, training=True) if stage else None
    return _values(pipeline.compute(stage, given, look.batch))[0]


def _put_far(buffer: Tensor, way: Way) -> None:
    with torch.no_grad():
        if buffer.dtype == torch.bool:
            buffer.logical_not_()
        elif buffer.is_floating_point() or buffer.is_complex():
            buffer.copy_(way.number(buffer))
        else:
            bounds = torch.iinfo(buffer.dtype)
            buffer.copy_(way.number(buffer.long()).clamp(bounds.min, bounds.max))


def _received(whole: WholePass, first: str, training: bool) -> Tensor:
    return whole.given[first].clone().requires_grad_(training)  # as what comes from another stage


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _total(found: Loss | Tensor) -> Tensor:
    return found.total if isinstance(found, Loss) else found


def _other(look: Look, pipeline: Pipeline, stage: int, found: Any, whole: WholePass) -> str:
    """What this stage makes otherwise than the whole has; empty where there is nothing."""
    stop = pipeline.parts.spans[stage].stop
    moved = _moved_otherwise(look, pipeline, stage, whole.buffers)
    if stop == len(look.names):
        return _other_in_loss(found, whole.returned) or moved
    return moved if _alike(found, whole.given[look.names[stop]]) else f"what {look.names[stop]} is given"


def _moved_otherwise(look: Look, pipeline: Pipeline, stage: int, wanted: Mapping[str, Tensor]) -> str:
    """The name of a buffer that this stage moves, and not as the whole has; empty where there is none."""
    names, span = look.names, pipeline.parts.spans[stage]
    blocks = tuple(f"{names[number]}." for number in span)
    for name, each in look.run.model.named_buffers():
        last_moves = span.stop == len(names) and name not in pipeline.owners.buffers
        if (last_moves or name.startswith(blocks)) and not _alike(each, wanted[name]):
            return name
    return ""


def _other_in_loss(found: Loss | Tensor, wanted: Loss | Tensor) -> str:
    """What of a loss is another one; empty where nothing is."""
    for what, *pair in zip(("the loss", "its prediction", "its target"), _values(found), _values(wanted), strict=True):
        here, there = pair
        if len(here) != len(there) or not all(map(_alike, here, there)):
            return what
    return ""


def _values(returned: Loss | Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Of each in shares, this rank's."""
    if isinstance(returned, Tensor):
        return [returned.detach()], [], []
    count = torch.as_tensor(returned.count, device=returned.total.device).to(returned.total.dtype)
    prediction, target = (
        [_own(each.detach()) for each in tree_leaves(some) if isinstance(each, Tensor)]
        for some in (returned.prediction, returned.target)
    )
    return [returned.total.detach(), count], prediction, target


def _own(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _alike(found: Any, wanted: Tensor) -> bool:
    """Up to what an accelerator's sums differ by from one time to the next: whole numbers may have been picked by two
    that are nearly the same."""
    if not isinstance(found, Tensor) or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return False
    if wanted.is_complex():
        return _alike(torch.view_as_real(found), torch.view_as_real(wanted))
    if not wanted.is_floating_point():
        return bool((found != wanted).sum() <= _PICKED_OTHERWISE * wanted.numel())
    most = max(1e-5, 4 * torch.finfo(wanted.dtype).eps)
    found, wanted = (each.float() if each.element_size() == 1 else each for each in (found, wanted))
    size = wanted.abs().nan_to_num(0.0, 0.0).max().item() if wanted.numel() else 0.0
    return torch.allclose(found, wanted, rtol=most, atol=most * size, equal_nan=True)
