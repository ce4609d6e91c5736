"""Whether layers that several ranks hold together compute what the whole ones did, on a batch of the job's own.

A table knows kinds of layers, and a plan names some; neither knows what the model does between them. A share that meets
what is not divided gives an error at best, and another loss in silence otherwise. So the loss of one batch is looked at
before and after, in evaluation mode, where nothing is drawn at random. Where more than layers is in shares, a sequence
or the scores of words, a right loss may have a wrong gradient; then those of what stays whole are looked at too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from hasten.errors import Misconfigured
from hasten.parallel.options import TensorOptions
from hasten.parallel.ways import Scores, below, splits_of
from hasten.training.losses import LossFunction, checked, mean_and_count
from hasten.training.quiet import evaluation_mode, undisturbed
from hasten.training.unmoved_loss import UnmovedLoss

if TYPE_CHECKING:
    from hasten.parallel.divided import Divided
    from hasten.training.run import Run

_FIX = (
    "name in columns the layers whose outputs are divided, in rows those that take these, and in heads what counts them"
)
_FIX_OF_SHARES = "leave sequence or vocabulary out, or name other layers"
# Of a loss, and of the norm of a gradient, relative. What sums in another order differ by is a hundred times less;
# products of fewer bits, as of TF32, differ by more.
_CLOSE, _CLOSE_OF_FEWER_BITS = 1e-4, 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """norms: of gradients, by the name of the parameter."""

    loss: float
    norms: Mapping[str, float] = field(default_factory=dict[str, float])


def checked_on_a_batch(run: Run, options: TensorOptions, divide: Callable[[], Divided]) -> Divided:
    """What `divide` gives. Raises Misconfigured where the loss, or a gradient, is another one afterwards."""
    batch = run._placed(run.setup.sample, run.built.train)
    names = _looked_at(run, options)
    fix = _FIX_OF_SHARES if names else _FIX
    before = _seen(run, run.job.loss, batch, names)
    divided = divide()
    try:
        after = _seen(run, run.loss, batch, names, divided)
    except Exception as error:
        what = f"with divided layers the loss of a batch raises {type(error).__name__}: {error}"
        raise Misconfigured(what, where="tensor", fix=fix) from error
    close = _CLOSE if torch.get_float32_matmul_precision() == "highest" else _CLOSE_OF_FEWER_BITS
    if not _alike(before.loss, after.loss, close, least=close):
        what = f"the loss of a batch is {before.loss:.6g} with whole layers, and {after.loss:.6g} with divided ones"
        raise Misconfigured(what, where="tensor", fix=fix)
    largest = max(before.norms.values(), default=0.0)
    for name, norm in before.norms.items():
        if not _alike(norm, after.norms[name], close, least=close * largest):
            found = f"{norm:.6g} with whole layers, and {after.norms[name]:.6g} with divided ones"
            what = f"the gradient of {name} has a norm of {found}, of one batch"
            raise Misconfigured(what, where="tensor", fix=fix)
    return divided


def _looked_at(run: Run, options: TensorOptions) -> list[str]:
    """Names of parameters that stay whole, where their gradients are to be looked at."""
    if not options.sequence and not any(isinstance(way, Scores) for way in options.ways.values()):
        return []
    divided = {
        below(name, own) for name, way in options.ways.items() for own in splits_of(run.model.get_submodule(name), way)
    }
    tied = {id(run.model.get_parameter(name)) for name in divided}
    return [name for name, each in run.model.named_parameters() if each.requires_grad and id(each) not in tied]


def _seen(run: Run, loss: LossFunction, batch: Any, names: list[str], divided: Divided | None = None) -> _Seen:
    unmoved = UnmovedLoss(run.built.loss_parameters, run.built.generators)
    parameters = {name: run.model.get_parameter(name) for name in names}
    with undisturbed(run.device), evaluation_mode(run.model), torch.set_grad_enabled(bool(names)), unmoved():
        mean, _ = mean_and_count(checked(loss(run.model, batch)), 1)
        if not names:
            return _Seen(loss=float(mean))
        gradients = torch.autograd.grad(mean, [*parameters.values()], allow_unused=True)
    found = {name: each for name, each in zip(names, gradients, strict=True) if each is not None}
    if divided is not None:
        divided.complete(found.items())
    norms = {name: float(found[name].norm()) if name in found else 0.0 for name in names}
    return _Seen(loss=float(mean.detach()), norms=norms)


def _alike(one: float, other: float, close: float, *, least: float) -> bool:
    return math.isclose(one, other, rel_tol=close, abs_tol=least) or math.isnan(one)
