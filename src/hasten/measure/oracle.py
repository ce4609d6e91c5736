"""Whether a plan computes the plain job's gradient: its rounding error, in multiples of the plain job's own.

Two ways to compute one gradient never agree to the bit, so asking whether they are equal leads nowhere, and asking
whether they are close needs a number that nobody knows. The answer is a third gradient, in float64: both are compared
with it, and the plain job's own error is the unit. A plan may be twice as far from the truth, and no more. A wrong
gradient is not near that line: in the tests even a loss scaled by 1.01 lies beyond it every time, in float32.

Every parameter is judged for itself and all of them together, by the relative L2 distance; the worst one counts, so
that a wrong bias cannot hide behind a large weight. Squared errors are pooled over several steps, because one is not
enough: the error of a single number is luck, and an honest plan that only adds in another order is many times worse
than the plain job in a bias that happened to be rounded well.

Luck is half of why the unit has a floor. The other half: how exactly the plain job adds is its library's affair, not
the format's promise. Torch's batch norm on a CPU is less exact in channels-last than in the usual layout, and both are
float32 done right. The rounding of a sum of n terms grows like √n (Higham and Mary 2019, doi:10.1137/18M1226312), and
nobody is blamed for less than that:

    rounding = u of the gradient's format + u of the sum's format · √terms
    unit = max(plain error, rounding · own norm, min(rounding · typical norm, √(plain error · own norm)))

u is half the spacing of numbers at 1, and sums are float32 at least. Norms are those of the reference gradient: the
parameter's own, and the one it would have were its numbers as large as all parameters' are in the root mean square.
The typical norm is there for terms that cancel: what reaches a parameter was rounded at the size of its terms, not of
their sum. It never excuses more than half of the digits that the plain job has right (the square root), so a parameter
of tiny gradients is still judged. Where the plain job has none right (the bias of a convolution before batch norm,
whose true gradient is 0), there is nothing to keep, and one error in the channel's mean is in every term: the unit is
the typical norm with the worst growth of a sum, n in place of √n.

What was given up: a parameter like that is only proven to stay that small; its noise cannot be right or wrong. And a
plain job in a narrow format has large errors of its own, behind which smaller ones hide: prove in float32.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hasten.errors import InvalidMeasurement
from hasten.facts.loss import Loss
from hasten.facts.plan import Proof

BOUND = 2.0
WHOLE = "all parameters together"

Gradients = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepGradients:
    """Parameter name -> gradient of one optimizer step, three times, from the same weights and the same full batch.

    A parameter that the loss does not reach is absent from plain and plan, and zero in the reference. Any device, dtype
    and layout; sparse gradients are made dense.
    """

    plain: Gradients
    plan: Gradients
    reference: Gradients  # float64, of every parameter that is trained; see reference_gradients


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientVerdict:
    """How a plan's gradient stands at its worst parameter. Errors and norms are L2, pooled over the steps."""

    worst: str  # a parameter's name, or WHOLE
    plain_error: float
    plan_error: float
    unit: float  # what the plan's error is measured in: the plain error, or the floor of rounding where that is more
    reference_norm: float
    multiple: float  # plan_error / unit; infinite where there is a fault
    bound: float
    steps: int
    fault: str = ""  # what no error can be computed of: a gradient that is missing, misshapen or not finite

    @property
    def passes(self) -> bool:
        return self.multiple <= self.bound

    @property
    def proof(self) -> Proof:
        return Proof(gradient_error=self.multiple, bound=self.bound)

    def __str__(self) -> str:
        if self.fault:
            return self.fault
        side = "within" if self.passes else "beyond"
        return f"the gradient error is {self.multiple:.3g} × rounding in {self.worst}, {side} {self.bound:g} ×"


def judge_gradients(steps: Sequence[StepGradients], *, terms: int, bound: float = BOUND) -> GradientVerdict:
    """Judge a plan's gradients by those of the plain job; steps: eight are enough; with fewer, luck can
    fail a plan that is right.

    terms: how many terms the longest sum behind one number of a gradient has: samples × positions per sample.

    What is wrong with the plan's gradients is in the verdict. Raises InvalidMeasurement for what leaves nothing to
    judge it by: no step, a reference of zeros, or a plain gradient that is missing, misshapen or not finite.
    """
    if not steps or terms < 1 or not 0 < bound < math.inf:
        raise InvalidMeasurement(
            f"{len(steps)} steps, {terms} terms and a bound of {bound} judge nothing",
            fix="give at least one of each, and a finite bound",
        )
    sums = {name: _Sums() for name in steps[0].reference}
    for position, step in enumerate(steps):
        fault = _add(step, f"step {position}", sums)
        if fault is not None:
            name, what = fault
            nothing = _Sums()
            return _verdict(name, nothing, math.inf, bound, len(steps), f"step {position}: {what}")
    whole = _Sums()
    for each in sums.values():
        whole.include(each)
    if whole.reference == 0:
        raise InvalidMeasurement("every reference gradient is zero", fix="use batches that the model learns from")
    typical = whole.reference / whole.numbers
    units = {name: _unit(each, typical, terms) for name, each in {**sums, WHOLE: whole}.items()}
    multiples = {name: _multiple(math.sqrt(_of(name, sums, whole).plan), unit) for name, unit in units.items()}
    worst = max(multiples, key=multiples.__getitem__)
    return _verdict(worst, _of(worst, sums, whole), units[worst], bound, len(steps))


@dataclass(slots=True)
class _Sums:
    """Of one parameter, or of all: squared errors and squared reference, over the steps."""

    plain: float = 0.0
    plan: float = 0.0
    reference: float = 0.0
    numbers: int = 0
    formats: frozenset[torch.dtype] = frozenset()  # of the plain job's gradients

    def include(self, other: _Sums) -> None:
        self.plain += other.plain
        self.plan += other.plan
        self.reference += other.reference
        self.numbers += other.numbers
        self.formats |= other.formats


def _of(name: str, sums: Mapping[str, _Sums], whole: _Sums) -> _Sums:
    return whole if name == WHOLE else sums[name]


def _verdict(name: str, sums: _Sums, unit: float, bound: float, steps: int, fault: str = "") -> GradientVerdict:
    error = math.sqrt(sums.plan)
    return GradientVerdict(
        worst=name,
        plain_error=math.sqrt(sums.plain),
        plan_error=error,
        unit=unit,
        reference_norm=math.sqrt(sums.reference),
        multiple=math.inf if fault else _multiple(error, unit),
        bound=bound,
        steps=steps,
        fault=fault,
    )


def _multiple(error: float, unit: float) -> float:
    """Infinite where the plain job is exact and the plan is not, and where an error is too large to be a number."""
    if error == 0:
        return 0.0
    return error / unit if unit > 0 and math.isfinite(error) else math.inf


def _unit(sums: _Sums, typical: float, terms: int) -> float:
    """typical: the mean square of a reference gradient's numbers, over all parameters and steps."""
    plain, own = math.sqrt(sums.plain), math.sqrt(sums.reference)
    if plain == own == 0:  # the loss does not reach it, and nothing is rounded on the way
        return 0.0
    typical_norm = math.sqrt(typical * sums.numbers)
    if plain >= own:  # no digit to keep; and the errors of such a sum add up, they do not average out
        return max(plain, _rounding(sums.formats, terms) * typical_norm)
    rounding = _rounding(sums.formats, math.sqrt(terms))
    return max(plain, rounding * own, min(rounding * typical_norm, math.sqrt(plain * own)))


def _rounding(formats: Iterable[torch.dtype], growth: float) -> float:
    """The relative rounding of a number that is summed, then stored; growth: of the sum's error over that of one term.
    Libraries sum 16-bit numbers in float32. Of several formats the finest counts: none lends its floor to others."""
    return min(
        torch.finfo(dtype).eps / 2 + torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2 * growth
        for dtype in formats
    )


def _add(step: StepGradients, where: str, sums: dict[str, _Sums]) -> tuple[str, str] | None:
    """Add one step's squares. The name and fault of the plan's first gradient that no error can be computed of."""
    if step.reference.keys() != sums.keys():
        name = min(step.reference.keys() ^ sums.keys())
        raise InvalidMeasurement(f"{name} is not in every reference", where=where, fix="take all from one model")
    for name in step.plain.keys() - step.reference.keys():
        raise InvalidMeasurement(f"{name} has no reference gradient", where=where, fix="take all from one model")
    for name in sorted(step.plan.keys() - step.reference.keys()):
        return name, f"the plan has a gradient of {name}, which the plain job does not train"
    for name, total in sums.items():
        truth = _dense(step.reference[name])
        plain, plan = step.plain.get(name), step.plan.get(name)
        if not truth.isfinite().all():
            raise InvalidMeasurement(f"the reference gradient of {name} is not finite", where=where)
        if plain is None and truth.any():
            raise InvalidMeasurement(f"the plain job has no gradient of {name}, but the reference has", where=where)
        if plain is not None and (what := _wrong(plain, truth)):
            raise InvalidMeasurement(f"the plain job's gradient of {name} {what}", where=where)
        if (plain is None) != (plan is None):
            who, other = ("plan", "plain job") if plan is None else ("plain job", "plan")
            return name, f"the {who} has no gradient of {name}, and the {other} has one"
        if plain is None or plan is None:
            total.numbers += truth.numel()
            continue
        if what := _wrong(plan, truth):
            return name, f"the plan's gradient of {name} {what}"
        total.include(
            _Sums(
                plain=_squared(_dense(plain) - truth),
                plan=_squared(_dense(plan) - truth),
                reference=_squared(truth),
                numbers=truth.numel(),
                formats=frozenset({plain.dtype}),
            )
        )
    return None


def _wrong(gradient: Tensor, truth: Tensor) -> str:
    if gradient.shape != truth.shape:
        return f"has shape {list(gradient.shape)}, not {list(truth.shape)}"
    broken = int((~_dense(gradient).isfinite()).sum())
    return f"has {broken} of {truth.numel()} numbers that are NaN or infinite" if broken else ""


def _squared(tensor: Tensor) -> float:
    return float(tensor.square().sum())


def _dense(gradient: Tensor) -> Tensor:
    gradient = gradient.detach()
    return (gradient if gradient.layout == torch.strided else gradient.to_dense()).to("cpu", torch.float64)


# ── the reference ───────────────────────────────────────────────────────────────────────────────────────────────────


def reference_gradients(
    model: nn.Module, loss: Callable[[nn.Module, Any], Loss | Tensor], batches: Sequence[Any]
) -> dict[str, Tensor]:
    """Parameter name -> gradient of the mean loss over all batches together; float64, dense, on the CPU.

    The model is copied, in the mode that it is in; nothing of it, nor any random state of the process, changes. A loss
    that returns a mean is weighted by the length of the batch's first tensor. Batch norm sees one batch at a time, so a
    model with it is given its full batch as one. Dropout draws its own numbers here: switch it off on every side. What
    raises in the job's own code passes through. Raises InvalidMeasurement for a loss that is not float64: something in
    it casts, and would round the truth.
    """
    copied = _in_float64(model)
    total = count = auxiliary = samples = 0
    with _undisturbed():
        for position, batch in enumerate(batches):
            batch = _batch_in_float64(batch)
            returned, size = loss(copied, batch), _length(batch)
            if isinstance(returned, Tensor):
                returned = Loss(returned * size, size)
            if returned.total.dtype != torch.float64:
                raise InvalidMeasurement(
                    f"the loss of a float64 model is {returned.total.dtype}",
                    where=f"batch {position}",
                    fix="let the loss keep the dtype that the model gives it",
                )
            total, count, samples = total + returned.total, count + returned.count, samples + size
            auxiliary = auxiliary if returned.auxiliary is None else auxiliary + returned.auxiliary * size
        if not isinstance(total, Tensor) or float(count) == 0:
            raise InvalidMeasurement("the batches hold nothing to sum over", fix="give at least one item")
        objective = total / count + auxiliary / max(samples, 1)
        objective.backward()
    trained = ((name, each) for name, each in copied.named_parameters() if each.requires_grad)
    return {name: torch.zeros_like(each) if each.grad is None else _dense(each.grad) for name, each in trained}


def _in_float64(model: nn.Module) -> nn.Module:
    """A copy on the CPU. Tensors are converted one by one on the way: an accelerator never holds a second model."""
    memo: dict[int, Any] = {id(each): _tensor_in_float64(each) for each in model.buffers()}
    for each in model.parameters():
        memo[id(each)] = nn.Parameter(_tensor_in_float64(each), requires_grad=each.requires_grad)
    return copy.deepcopy(model, memo)


def _tensor_in_float64(tensor: Tensor) -> Tensor:
    dtype = torch.float64 if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to("cpu", dtype, copy=True)


def _batch_in_float64(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return _tensor_in_float64(batch)
    if isinstance(batch, Mapping):
        return {key: _batch_in_float64(value) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        items = [_batch_in_float64(item) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return batch


def _length(batch: Any) -> int:
    """Of the first dimension of the first tensor; 1 where there is none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    items = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return next((_length(item) for item in items if isinstance(item, Tensor | Mapping | tuple | list)), 1)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """float64 for tensors that the job makes itself, and gradients on; both, and every random state, put back."""
    dtype, python, of_numpy = torch.get_default_dtype(), random.getstate(), np.random.get_state()
    try:
        # fork_rng() without devices covers the CPU and every accelerator that has been used.
        with torch.random.fork_rng(), torch.enable_grad():  # autocast leaves float64
            torch.set_default_dtype(torch.float64)
            yield
    finally:
        torch.set_default_dtype(dtype)
        random.setstate(python)
        np.random.set_state(of_numpy)
