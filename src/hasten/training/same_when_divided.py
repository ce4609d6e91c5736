"""Whether layers that several ranks hold together compute what the whole ones did, on a batch of the job's own.

A table knows kinds of layers, and a plan names some; neither knows what the model does between them. A share that meets
what is not divided gives an error at best, and another loss in silence otherwise; and a right loss may have a wrong
gradient, where a rank knows that of its own share alone. So the loss of one batch and all gradients are compared,
before and after: in evaluation mode, and in training mode where nothing is drawn at random then; with weights that are
moved a little, as a layer that begins with zeros would hide what is wrong about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hasten.data.loading.data_errors import is_out_of_memory
from hasten.data.order.randomness import random_state
from hasten.errors import Misconfigured
from hasten.parallel.launch.process_group import on_any
from hasten.parallel.options import TensorOptions
from hasten.parallel.python_state import PythonState
from hasten.parallel.replicate.replicated import gather_over_ranks
from hasten.parallel.ways import Scores
from hasten.techniques.common.restored_state import same_state
from hasten.training.nudged import Nudged
from hasten.training.probes.quiet import evaluation_mode, undisturbed
from hasten.training.step_parts.losses import LossFunction, checked, mean_and_count

if TYPE_CHECKING:
    from hasten.parallel.tensor.tensor_sharding import Divided
    from hasten.training.run import Run

_FIX = (
    "name in columns the layers whose outputs are divided, in rows those that take these, and in heads what counts them"
)
_FIX_OF_SHARES = "leave sequence or vocabulary out, or name other layers"
_NOT_COMPARED = "tensor: gradients were not compared with those of whole layers, which do not fit into memory here"
# Of a loss, relative. What sums in another order differ by is a hundred times less; products of fewer bits, as of TF32,
# differ by more. Of a gradient, whose sums are longer and cancel, so many times that; and of the largest one so much at
# the least, as a gradient that is nothing but rounding is no gradient.
_CLOSE, _CLOSE_OF_FEWER_BITS = 1e-4, 1e-3
_OF_A_GRADIENT, _LEAST_GRADIENT = 10.0, 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """gradients: by the name of the parameter, on the host; None where they were not looked at."""

    loss: float
    gradients: Mapping[str, Tensor] | None


def checked_on_a_batch(run: Run, options: TensorOptions, divide: Callable[[], Divided]) -> Divided:
    """What `divide` gives. Raises Misconfigured, on all ranks, where the loss, or a gradient, is another one
    afterwards."""
    batch = run._placed(run.setup.sample, run.built.train)
    shares = bool(options.sequence) or any(isinstance(way, Scores) for way in options.ways.values())
    fix = _FIX_OF_SHARES if shares else _FIX
    nudged = Nudged(run.model)
    before = {training: _whole(run, batch, training) for training in _modes(run, batch)}
    divided = divide()
    for training, wanted in before.items():
        try:
            found = _seen(run, run.loss, batch, training, wanted.gradients is not None, divided)
        except Exception as error:
            told = " ".join(f"{type(error).__name__}: {error}".split())
            what = f"with divided layers the loss of a batch raises {told}"
            raise Misconfigured(what, where="tensor", fix=fix) from error
        everywhere = gather_over_ranks(filter(None, [_difference(wanted, found, divided)]), run.grid.all, run.device)
        if everywhere:  # each rank looks at its own share, and the next mode is all ranks' to compute, or nobody's
            what = f"{everywhere[0]}, of one batch in {'training' if training else 'evaluation'} mode"
            raise Misconfigured(what, where="tensor", fix=fix)
    nudged.back(divided.share)
    return divided


def _modes(run: Run, batch: Any) -> list[bool]:
    """In which modes the model is compared: also in training mode where nothing is drawn then, as shares draw otherwise
    than the whole."""
    with _untouched(run, training=True), torch.no_grad():
        drawn = _drawn(run)
        run.job.loss(run.model, batch)
        draws = _drawn(run) != drawn
    return [False] if on_any(draws) else [False, True]


def _drawn(run: Run) -> str:
    return repr((random_state(run.device), run.built.declared.generator_states()))


def _whole(run: Run, batch: Any, training: bool) -> _Seen:
    found, fits = None, True
    try:
        found = _seen(run, run.job.loss, batch, training, gradients=True)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        fits = False
    if not on_any(not fits) and found is not None:
        return found
    if _NOT_COMPARED not in run.notices:
        run.notices.append(_NOT_COMPARED)
    return _seen(run, run.job.loss, batch, training, gradients=False)


def _seen(
    run: Run, loss: LossFunction, batch: Any, training: bool, gradients: bool, divided: Divided | None = None
) -> _Seen:
    trained = {name: each for name, each in run.model.named_parameters() if each.requires_grad}
    with _untouched(run, training=training), torch.set_grad_enabled(gradients):
        mean, _ = mean_and_count(checked(loss(run.model, batch)), 1)
        if not gradients:
            return _Seen(loss=float(mean), gradients=None)
        try:
            mean.backward()
            if divided is not None:
                divided.complete(trained.items())
            found = {name: each.grad.to("cpu", copy=True) for name, each in trained.items() if each.grad is not None}
            return _Seen(loss=float(mean.detach()), gradients=found)
        finally:
            for each in run.model.parameters():
                each.grad = None


@contextmanager
def _untouched(run: Run, *, training: bool) -> Iterator[None]:
    counted = PythonState(run.model, run.job.loss).as_it_was()
    with (
        undisturbed(run.device),
        same_state(run.model),
        evaluation_mode(run.model),
        run.built.declared.preserved(),
        counted,
    ):
        if training:
            run.model.train()
        yield


def _difference(wanted: _Seen, found: _Seen, divided: Divided) -> str:
    """In words; empty where there is none."""
    close = _CLOSE if torch.get_float32_matmul_precision() == "highest" else _CLOSE_OF_FEWER_BITS
    if abs(wanted.loss - found.loss) > close * max(1.0, abs(wanted.loss)):  # neither where one is NaN in the whole
        return f"the loss is {wanted.loss:.6g} with whole layers, and {found.loss:.6g} with divided ones"
    if wanted.gradients is None or found.gradients is None:
        return ""
    norms = {name: float(each.norm()) for name, each in wanted.gradients.items()}
    least = _LEAST_GRADIENT * max(norms.values(), default=0.0)
    for name in dict.fromkeys([*wanted.gradients, *found.gradients]):
        if name not in wanted.gradients or name not in found.gradients:
            where = "whole" if name in wanted.gradients else "divided"
            return f"the gradient of {name} is there with {where} layers alone"
        own = divided.share(name, wanted.gradients[name])
        off = float((found.gradients[name] - own).norm())
        if off > _OF_A_GRADIENT * close * max(norms[name], least):
            return f"the gradient of {name} has a norm of {norms[name]:.6g} with whole layers, and is off by {off:.6g}"
    return ""
