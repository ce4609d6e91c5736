"""Whether a plan computes the baseline's gradient: its rounding error, in multiples of the baseline's own.

Two ways to compute one gradient never agree to the bit. So both are compared with a float64 gradient, and the
baseline's own error is the unit. A plan may be twice as far from the truth. In the tests even a loss scaled by 1.01 is
beyond that line every time, in float32.

Every parameter is judged by its relative L2 distance, and all of them together; the worst one counts, so a wrong bias
cannot hide behind a large weight. Squared errors are pooled over several steps. The rounding of a sum of n terms grows
like √n (Higham and Mary 2019, doi:10.1137/18M1226312), so the unit has a floor:

    rounding = u of the gradient's dtype + u of the sum's dtype · √terms
    unit = max(baseline error, rounding · own norm, min(rounding · typical norm, √(baseline error · own norm)))

u is half the spacing of numbers at 1, and sums are float32 at least. Norms are of the reference gradient: the
parameter's own, and the one it would have if its numbers were as large as all parameters' are in the root mean square.
The typical norm is for terms that cancel: they were rounded at their own size, not at their sum's. It never excuses
more than half of the digits that the baseline has right (the square root). Where the baseline has none right (the bias
of a convolution before batch norm, whose true gradient is 0), the unit is the typical norm with n in place of √n.

An activation within rounding of 0 can be on either side of a ReLU's kink, and one such flip changes every gradient
before it by far more than rounding. So the baseline takes the step again from weights changed by rounding; its mean
error there is another floor of the unit. Where flips are rare, the worst step of each parameter can be spared as well,
unless a tenth of that step's gradient is wrong.

Limits: a parameter whose gradient is only noise is proven to stay small, not to be right. In a low-precision dtype the
baseline's own errors hide smaller ones: prove in float32. Before a kink, an error below about a hundredth of one
parameter's gradient can pass for flips.

Optimizers are judged separately: Adam's first update is little more than the gradient's sign, and the sign of a
gradient near 0 is luck. The truth is the update of the job's own optimizer in float64, from the same gradient and the
same weights. A weight is rounded when it is stored, and its change in every operation of the formula:

    unit = max(baseline error, u of the weight's dtype · (norm of the weights + 8 · norm of their change))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.errors import InvalidMeasurement
from hasten.measure.float64_reference import dense, rounding

BOUND = 2.0
WHOLE = "all parameters together"
FLIP = 0.1  # the most that one flip of an activation changes of a gradient
FEWEST_TO_SPARE = 4  # steps
ROUNDINGS = 8  # of an update's formula, one after the other

Gradients = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepGradients:
    """Parameter name -> gradient of one optimizer step, three times, from the same weights and the same full batch.

    plain: of the baseline. A parameter that the loss does not reach is absent from plain and plan, and zero in the
    reference. Any device, dtype and layout; sparse gradients are made dense.
    """

    plain: Gradients
    plan: Gradients
    reference: Gradients  # float64, of every trained parameter; see float64_reference.py


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """On a plan's gradient or update, at its worst parameter."""

    worst: str  # a parameter's name, or WHOLE
    multiple: float  # the plan's error in units; infinite where there is a fault
    share: float = math.inf  # the plan's error over the norm of the reference
    of: str = "gradient"
    fault: str = ""  # a gradient that is missing, misshapen or not finite
    bound: float = BOUND

    @property
    def passes(self) -> bool:
        return self.multiple <= self.bound

    def __str__(self) -> str:
        if self.fault:
            return self.fault
        times = f"{self.multiple:,.0f}" if self.multiple >= 100 else f"{self.multiple:.3g}"
        share = f" by {self.share:.2g} of its norm" if math.isfinite(self.share) else ""
        off = f"differs from its float64 reference{share}"
        allowed = f"{times} times the rounding error of the baseline; up to {self.bound:g} times is allowed"
        return f"the {self.of} of {self.worst} {off}, {allowed}"


class GradientJudge:
    """Judges a plan's gradients by the baseline's: add() each step, then verdict().

    Eight steps are enough; with fewer, luck can fail a plan that is right. What is wrong with the plan's gradients is
    in the verdict. Raises InvalidMeasurement when nothing can be judged: a reference of zeros, or a baseline gradient
    that is missing or not finite.
    """

    def __init__(self, *, terms: int, nearby: Mapping[str, float] | None = None, spares: bool = False) -> None:
        """terms: of the longest sum behind one number of a gradient; see longest_sum.
        nearby: parameter name -> squared error of the baseline from nearby weights, summed over the steps.
        spares: whether the worst of four steps or more can be luck."""
        self._terms, self._steps = terms, 0
        self._nearby, self._spares = nearby or {}, spares
        self._sums: dict[str, _Sums] = {}
        self._fault: Verdict | None = None

    def add(self, step: StepGradients) -> None:
        if not self._steps:
            self._sums = {name: _Sums() for name in step.reference}
        self._fault = self._fault or _add(step, f"step {self._steps}", self._sums)
        self._steps += 1

    def verdict(self) -> Verdict:
        if self._fault is not None:
            return self._fault
        whole = self._whole()
        typical = whole.reference / whole.numbers
        sums = {**{name: copy(each) for name, each in self._sums.items()}, WHOLE: whole}
        nearby = {**self._nearby, WHOLE: sum(self._nearby.values())}
        if self._spares and self._steps >= FEWEST_TO_SPARE:
            for each in sums.values():
                each.plan = max(each.plan - each.spared, 0.0)
        multiples = {
            name: _multiple(each.plan, max(_unit(each, typical, self._terms), math.sqrt(nearby.get(name, 0))))
            for name, each in sums.items()
        }
        worst = max(multiples, key=multiples.__getitem__)
        share = _ratio(sums[worst].plan, sums[worst].reference)
        return Verdict(worst=worst, multiple=multiples[worst], share=share)

    @property
    def plain_share(self) -> float:
        """The baseline's error over the norm of the truth: 1e-6 is rounding, 0.1 is another gradient."""
        whole = self._whole()
        return _ratio(whole.plain, whole.reference)

    def _whole(self) -> _Sums:
        whole = _Sums()
        for each in self._sums.values():
            whole.include(each)
        whole.spared = sum(each.spared for each in self._sums.values())
        if whole.reference == 0:
            raise InvalidMeasurement("every reference gradient is zero", fix="use batches that the model learns from")
        return whole


@dataclass(slots=True)
class _Sums:
    """Of one parameter, or of all: squared errors and squared reference, over the steps."""

    plain: float = 0.0
    plan: float = 0.0
    reference: float = 0.0
    spared: float = 0.0  # the plan's worst step, if a flip explains it
    numbers: int = 0
    dtypes: frozenset[torch.dtype] = frozenset()  # of the baseline's gradients

    def include(self, other: _Sums) -> None:
        self.plain += other.plain
        self.plan += other.plan
        self.reference += other.reference
        self.spared = max(self.spared, other.spared)
        self.numbers += other.numbers
        self.dtypes |= other.dtypes

    def rounding(self, growth: float) -> float:
        """Of several dtypes the finest counts."""
        return min(rounding(dtype, growth) for dtype in self.dtypes)


def _multiple(squared_error: float, unit: float) -> float:
    """Infinite where the baseline is exact and the plan is not, or where the error is infinite."""
    if squared_error == 0:
        return 0.0
    return math.sqrt(squared_error) / unit if unit > 0 and math.isfinite(squared_error) else math.inf


def _ratio(squared_error: float, squared_norm: float) -> float:
    return math.sqrt(squared_error / squared_norm) if squared_norm else math.inf


def _unit(sums: _Sums, typical: float, terms: int) -> float:
    """typical: mean square of a reference gradient's numbers, over all parameters and steps."""
    plain, own = math.sqrt(sums.plain), math.sqrt(sums.reference)
    if plain == own == 0:  # the loss does not reach it, and nothing is rounded on the way
        return 0.0
    typical_norm = math.sqrt(typical * sums.numbers)
    if plain >= own:  # no digit to keep; and the errors of such a sum add up, they do not average out
        return max(plain, sums.rounding(terms) * typical_norm)
    share = sums.rounding(math.sqrt(terms))
    return max(plain, share * own, min(share * typical_norm, math.sqrt(plain * own)))


def squared_errors(found: Gradients, truth: Gradients) -> dict[str, float]:
    """Parameter name -> squared distance, of those that have both."""
    return {name: _squared(dense(each) - dense(truth[name])) for name, each in found.items() if name in truth}


def _add(step: StepGradients, where: str, sums: dict[str, _Sums]) -> Verdict | None:
    """Add one step's squares. The verdict on the plan's first gradient that has no error."""

    def fault(name: str, what: str) -> Verdict:
        return Verdict(worst=name, multiple=math.inf, fault=f"{where}: {what}")

    for name in sorted(step.plan.keys() - step.reference.keys()):
        return fault(name, f"the plan has a gradient of {name}, which the baseline does not train")
    for name, total in sums.items():
        truth = dense(step.reference[name])
        plain, plan = step.plain.get(name), step.plan.get(name)
        norm = _squared(truth)
        if plain is None and norm:
            raise InvalidMeasurement(f"the baseline has no gradient of {name}, but the reference has", where=where)
        if (plain is None) != (plan is None):
            who, other = ("plan", "baseline") if plan is None else ("baseline", "plan")
            return fault(name, f"the {who} has no gradient of {name}, and the {other} has one")
        if plain is None or plan is None:
            total.numbers += truth.numel()
            continue
        if plan.shape != truth.shape:
            shapes = f"{list(plan.shape)}, not {list(truth.shape)}"
            return fault(name, f"the plan's gradient of {name} has shape {shapes}")
        error, error_of_plan = (_squared(dense(each) - truth) for each in (plain, plan))
        if not math.isfinite(error):  # so is a reference that is not finite
            raise InvalidMeasurement(f"the baseline's gradient of {name} is not finite", where=where)
        if not math.isfinite(error_of_plan):
            broken = f"{int((~dense(plan).isfinite()).sum())} of {truth.numel()} numbers"
            return fault(name, f"the plan's gradient of {name} has {broken} that are NaN or infinite")
        total.include(
            _Sums(
                plain=error,
                plan=error_of_plan,
                reference=norm,
                spared=error_of_plan if error_of_plan <= FLIP**2 * norm else 0.0,
                numbers=truth.numel(),
                dtypes=frozenset({plain.dtype}),
            )
        )
    return None


def _squared(tensor: Tensor) -> float:
    return float(tensor.flatten().dot(tensor.flatten()))


# ── the update ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateError:
    """Of one parameter's updates in one arm, squared and summed over its numbers and the steps."""

    error: float = 0.0
    weights: float = 0.0
    change: float = 0.0
    rounding: float = 0.0  # u of the weight's dtype

    def __add__(self, other: UpdateError) -> UpdateError:
        return UpdateError(
            error=self.error + other.error,
            weights=self.weights + other.weights,
            change=self.change + other.change,
            rounding=max(self.rounding, other.rounding),
        )

    @property
    def floor(self) -> float:
        return self.rounding * (math.sqrt(self.weights) + ROUNDINGS * math.sqrt(self.change))


def update_error(before: Tensor, after: Tensor, truth: Tensor) -> UpdateError:
    """before, after: a parameter around an optimizer's step; truth: float64, what it should be after."""
    own = torch.finfo(after.dtype).eps / 2
    before, after, truth = dense(before), dense(after), dense(truth)
    return UpdateError(
        error=_squared(after - truth), weights=_squared(truth), change=_squared(truth - before), rounding=own
    )


def judge_updates(plain: Mapping[str, UpdateError], plan: Mapping[str, UpdateError]) -> Verdict:
    """Judge a plan's updates: parameter name -> its error, in both arms.

    A parameter that the plan does not have is not judged. One that only the plan updates is a fault.
    """
    for name in sorted(plan.keys() - plain.keys()):
        return Verdict(worst=name, multiple=math.inf, of="update", fault=f"the baseline does not update {name}")
    multiples = {
        name: _multiple(each.error, max(math.sqrt(plain[name].error), each.floor)) for name, each in plan.items()
    }
    worst = max(multiples, key=multiples.__getitem__)
    share = _ratio(plan[worst].error, plan[worst].change)
    return Verdict(worst=worst, multiple=multiples[worst], share=share, of="update")
