"""The most that each technique can gain in time, so that what cannot be seen is not tried, and what may gain most is
tried first.

A technique is given the parts of the planned run that it can make shorter, and is bounded by their seconds
(measure/budget.py). The table errs on the loose side, for a part too many costs one trial and a part too few loses a
gain without a word:

* One that the table does not know reaches everything: it is never skipped.
* Settings of the whole process reach everything: memory and compute threads are used by all parts.
* Where loader workers read beside the step, they take cores and memory bandwidth from it. What makes reading cheaper,
  or moves it, can then make every part shorter, whatever the wait for data is.
* What makes the model cheaper cannot make the wait for data shorter: a batch that takes longer to read than the model
  to compute is waited for all the same, and a core that the model leaves saves no more than the model took. What splits
  the step up or moves threads can, so it reaches the wait as well.
* On an accelerator a fused update no longer makes the host wait for the device, and metrics that stay there neither:
  the host then runs ahead of the device, and hides reading, copying and launching behind it.
* Evaluation reads, copies and computes by the same plan, so it is in reach of whatever makes one of these faster.

A bound belongs to the budget of one plan: with another plan, the interactions above are others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from hasten.facts.choice import Choice, Preserves
from hasten.facts.trials import Budget
from hasten.measure.speedup_bound import EVERYTHING, STEP, Part, Parts, PlannedRun, most_gain, reason, share

NOTHING: Parts = frozenset()
LOADING: Parts = frozenset({Part.DATA_WAIT, Part.TRANSFER, Part.EVALUATION, Part.TURN})
COMPUTING: Parts = frozenset({Part.FORWARD, Part.BACKWARD, Part.PYTHON, Part.EVALUATION})


@dataclass(frozen=True, kw_only=True, slots=True)
class Around:
    """What else decides how far a technique reaches, under the plan whose budget it is."""

    on_cpu: bool
    cores: int
    reads_beside: bool  # loader workers, processes or threads, read while the step computes
    memory_full: bool  # of the device
    saved_tensors: int | None = None  # by the forward passes of a step, for the backward passes; None: nobody may look
    page_faults: float = 0.0  # of a step, for pages that the system gives the process


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """Parts that a technique can make shorter: always, and in addition where something around is so."""

    always: Parts
    reading_beside: Parts = NOTHING
    off_cpu: Parts = NOTHING
    memory_full: Parts = NOTHING


_READING = Reach(always=LOADING, reading_beside=EVERYTHING)
_TRAINING = Reach(always=NOTHING)  # they change what is learned: no heat tries them, and target.py judges them

REACH: Mapping[str, Reach] = {
    "accumulation": Reach(always=STEP),
    "activation_checkpointing": Reach(always=NOTHING, memory_full=STEP),  # it buys memory with time
    "allocator": Reach(always=EVERYTHING),
    "batch_size": _TRAINING,
    "cache": _READING,
    "channels_last": Reach(always=COMPUTING | {Part.TRANSFER}),  # images are laid out on their way to the device
    "clipping": _TRAINING,
    "communication": Reach(always=frozenset({Part.BACKWARD})),
    "compile": Reach(always=COMPUTING),
    "conv_bn_bias": Reach(always=COMPUTING | {Part.OPTIMIZER}),  # there are fewer tensors to update
    "cudnn_autotune": Reach(always=COMPUTING),
    "device_metrics": Reach(always=frozenset({Part.PYTHON}), off_cpu=STEP),
    "device_prefetch": _READING,
    "device_transform": _READING,
    "evaluation_batch": Reach(always=frozenset({Part.EVALUATION})),
    "flush_denormals": Reach(always=EVERYTHING),
    "fused_operators": Reach(always=COMPUTING),
    "fused_optimizer": Reach(always=frozenset({Part.OPTIMIZER}), off_cpu=STEP),
    "in_memory": _READING,
    "learning_rate": _TRAINING,
    "loader_workers": _READING,
    "microbatch": Reach(always=STEP),
    # It keeps workers over the turn of an epoch. Those that start anew are slow in their first batches; and while they
    # are copies of the training process, that must copy what it writes to: what is updated.
    "persistent_workers": Reach(always=frozenset({Part.DATA_WAIT, Part.OPTIMIZER, Part.TURN})),
    "pin_memory": _READING,
    "pipeline": Reach(always=NOTHING, memory_full=STEP),
    # tf32 is a setting of the process, for products in an optimizer or a device transform as well.
    "precision": Reach(always=COMPUTING | {Part.OPTIMIZER, Part.TRANSFER}),
    "prefetch": Reach(always=LOADING),  # workers do the same work, only sooner or later
    "schedule": _TRAINING,
    "shard": Reach(always=NOTHING, memory_full=STEP),
    "stop_at": _TRAINING,
    "tensor": Reach(always=STEP),
    "threads": Reach(always=EVERYTHING),
}

FAULT_SECONDS = 1e-6
"""What a page fault is taken to cost, with clearing the page. It says who is tried sooner, and who is asked again. That
a remedy is worth anything, only its windows say."""

OPERATION_SECONDS = 20e-6
"""What launching an operation is taken to cost, forward and backward: where operations are much longer than that, that
there are many of them is no symptom."""

COUNTED = frozenset({"SLOW_ALLOCATION"})
"""Symptoms that are counted in a few steps, whatever noise there is in their seconds."""

COUNTS = 0.02
"""Share of the planned run from which on what was counted is worth a remedy."""

RARELY = frozenset({"flush_denormals"})
"""They reach everything, and change nothing but in jobs of which no budget can tell: those with tiny numbers."""

REMEDIED: Mapping[str, Parts] = {
    "SLOW_MATRIX_PRODUCT": frozenset({Part.FORWARD, Part.BACKWARD, Part.EVALUATION}),
    "SLOW_CONVOLUTION": frozenset({Part.FORWARD, Part.BACKWARD, Part.EVALUATION}),
    "MANY_SMALL_OPERATIONS": frozenset({Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER, Part.PYTHON}),
    "SLOW_OPTIMIZER": frozenset({Part.OPTIMIZER}),
    "MEMORY_FULL": frozenset({Part.FORWARD, Part.BACKWARD}),
    "SLOW_LOADING": frozenset({Part.DATA_WAIT, Part.TRANSFER, Part.TURN}),
    "DEVICE_IDLE": frozenset({Part.DATA_WAIT, Part.TRANSFER, Part.PYTHON}),
    "SLOW_ALLOCATION": frozenset({Part.FORWARD, Part.BACKWARD}),
    "SLOW_CONVERGENCE": NOTHING,
    "UNSTABLE_TRAINING": NOTHING,
    "SLOW_COMMUNICATION": frozenset({Part.BACKWARD}),
    "SLOW_EVALUATION": frozenset({Part.EVALUATION}),
}
"""Symptom -> the parts in which it shows. It orders what is tried, and keeps nothing from being tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """most_gain: on the time to finish the planned run, 1 or more; an upper bound, infinite where there is none.

    promise: share of the planned run, 0 to 1, in which what the technique is a remedy for shows.
    counted: share of the planned run that was counted in events, of a symptom that can be; 0 of any other.
    reason: a sentence for the candidate that is skipped because its bound is too small to be seen.
    """

    most_gain: float
    promise: float
    reason: str
    counted: float = 0.0


def parts_of(technique: str, around: Around) -> Parts:
    """What a technique can make shorter; everything for one that the table does not know."""
    reach = REACH.get(technique)
    if reach is None:
        return EVERYTHING
    parts = reach.always
    parts |= reach.reading_beside if around.reads_beside else NOTHING
    parts |= NOTHING if around.on_cpu else reach.off_cpu
    return parts | (reach.memory_full if around.memory_full else NOTHING)


def bounds_of(budget: Budget, run: PlannedRun, around: Around, treats: Mapping[str, str]) -> dict[str, Bound]:
    """The bound of every technique, by its name. treats: technique -> the name of its symptom, as the survey says.

    Raises InvalidMeasurement for a budget that cannot be believed.
    """
    found = dict[str, Bound]()
    for technique, symptom in treats.items():
        parts = parts_of(technique, around)
        shows = REMEDIED.get(symptom, EVERYTHING) & parts
        found[technique] = Bound(
            most_gain=most_gain(budget, run, parts),
            promise=(
                promise := share(budget, run, shows) * _presence(symptom, budget, around) * _part(technique, around)
            ),
            reason=reason(budget, run, parts),
            counted=promise if symptom in COUNTED and around.on_cpu else 0.0,
        )
    return found


def _presence(symptom: str, budget: Budget, around: Around) -> float:
    """How far a symptom is there, from 0 to 1, as the budget's steps tell."""
    if symptom == "MEMORY_FULL":
        return float(around.memory_full)
    computing = budget.forward + budget.backward
    if symptom == "SLOW_ALLOCATION" and around.on_cpu and computing > 0:
        return min(1.0, around.page_faults * FAULT_SECONDS / computing)
    if symptom == "MANY_SMALL_OPERATIONS" and around.saved_tensors is not None and computing > 0:
        return min(1.0, around.saved_tensors * OPERATION_SECONDS / computing)
    return 1.0


def _part(technique: str, around: Around) -> float:
    """Of what a technique treats, the part that it can take away. Loader workers only move work to other cores, and on
    a CPU the model computes on all of them; a cache leaves nothing to do."""
    return 1 - 1 / around.cores if technique == "loader_workers" and around.on_cpu else 1.0


def order(candidates: Sequence[Choice], bounds: Mapping[str, Bound]) -> list[Choice]:
    """The same candidates: what treats something that was counted, the most promising of all others first, and what
    rarely pays last; those of equal promise stay in their order, but that who claims to preserve less comes first.

    By promise and not by bound: a loose bound, such as a setting of the whole process has, says that much may be gained
    and not that anything is likely to be. A further value of a technique promises half of the one before it, for a
    search without time for all has to have asked after each remedy before it asks how much of one is best.
    """
    before, places = Counter[str](), list[tuple[tuple[bool, bool, float, int], Choice]]()
    for choice in candidates:
        promise = _promise(choice, bounds) / 2 ** before[choice.technique]
        before[choice.technique] += 1
        claim = Preserves.TRAINING if choice.preserves is None else choice.preserves
        place = choice.technique in RARELY, not is_counted(choice, bounds), -promise, -claim
        places.append((place, choice))
    return [choice for _, choice in sorted(places, key=itemgetter(0))]


def is_counted(choice: Choice, bounds: Mapping[str, Bound]) -> bool:
    """Whether it treats what was counted, and much of it: that is there, where a bound only says what may be."""
    bound = bounds.get(choice.technique)
    return bound is not None and bound.counted >= COUNTS


def _promise(choice: Choice, bounds: Mapping[str, Bound]) -> float:
    bound = bounds.get(choice.technique)
    return 1.0 if bound is None else bound.promise
