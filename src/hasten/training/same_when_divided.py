"""Whether layers that several ranks hold together compute what the whole ones did, on a batch of the job's own.

A table knows kinds of layers, and a plan names some; neither knows what the model does between them. A share that meets
what is not divided gives an error at best, and another loss in silence otherwise. So the loss of one batch is looked at
before and after, in evaluation mode, where nothing is drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from hasten.errors import Misconfigured
from hasten.training.losses import checked, mean_and_count
from hasten.training.quiet import evaluation_mode, undisturbed
from hasten.training.unmoved_loss import UnmovedLoss

if TYPE_CHECKING:
    from hasten.parallel.divided import Divided
    from hasten.training.run import Run

_FIX = (
    "name in columns the layers whose outputs are divided, in rows those that take these, and in heads what counts them"
)
# Of a loss, relative. What sums in another order differ by is a hundred times less; products of fewer bits, as of TF32,
# differ by more.
_CLOSE, _CLOSE_OF_FEWER_BITS = 1e-4, 1e-3


def checked_on_a_batch(run: Run, divide: Callable[[], Divided]) -> Divided:
    """What `divide` gives. Raises Misconfigured where the loss is another one afterwards."""
    batch = run._placed(run.setup.sample, run.built.train)
    before = _loss(run, batch)
    divided = divide()
    try:
        after = _loss(run, batch)
    except Exception as error:
        what = f"with divided layers the loss of a batch raises {type(error).__name__}: {error}"
        raise Misconfigured(what, where="tensor", fix=_FIX) from error
    close = _CLOSE if torch.get_float32_matmul_precision() == "highest" else _CLOSE_OF_FEWER_BITS
    if not math.isclose(before, after, rel_tol=close, abs_tol=close) and not math.isnan(before):
        what = f"the loss of a batch is {before:.6g} with whole layers, and {after:.6g} with divided ones"
        raise Misconfigured(what, where="tensor", fix=_FIX)
    return divided


def _loss(run: Run, batch: Any) -> float:
    unmoved = UnmovedLoss(run.built.loss_parameters, run.built.generators)
    with undisturbed(run.device), evaluation_mode(run.model), torch.no_grad(), unmoved():
        mean, _ = mean_and_count(checked(run.job.loss(run.model, batch)), 1)
        return float(mean)
