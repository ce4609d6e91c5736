"""An upper bound on the time that each technique can gain: what cannot be seen is not tried, and the most promising is
tried first.

REACH names the parts of the planned run that a technique can shorten; their seconds bound its gain
(measure/speedup_bound.py). A part too many costs one trial, and a part too few loses a gain silently:

* Where loader workers read beside the step, they take cores and memory bandwidth from it. What makes reading cheaper
  can then shorten every part.
* What makes the model cheaper cannot shorten the wait for data: a batch that takes longer to read than to compute is
  waited for in any case. What splits the step or moves threads can.
* Fewer threads, which are at most half of them, cannot be faster than the work of one thread, shared by them.
* On an accelerator a fused update and metrics on the device spare the host a wait. It then runs ahead of the device.

A bound belongs to the budget of one plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from hasten.facts.choice import Choice, Preserves
from hasten.facts.trials import LEAST_GAIN, Budget
from hasten.measure.speedup_bound import EVERYTHING, STEP, Part, Parts, PlannedRun, most_gain, reason, share

NOTHING: Parts = frozenset()
LOADING: Parts = frozenset({Part.DATA_WAIT, Part.TRANSFER, Part.EVALUATION, Part.TURN})
COMPUTING: Parts = frozenset({Part.FORWARD, Part.BACKWARD, Part.PYTHON, Part.EVALUATION})


@dataclass(frozen=True, kw_only=True, slots=True)
class Around:
    """What else decides how far a technique reaches, under the plan of a budget."""

    on_cpu: bool
    cores: int
    reads_beside: bool  # loader workers, processes or threads, read while the step computes
    fault_seconds: float = 0.0  # page faults of all threads in a step, times the measured seconds of one
    threads: int = 1  # that compute
    one_thread: float = 0.0  # seconds of a step that one of them computes, over those of one that all do; 0: unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """Parts that a technique can shorten: always, and in addition under a condition."""

    always: Parts
    reading_beside: Parts = NOTHING
    off_cpu: Parts = NOTHING


_READING = Reach(always=LOADING, reading_beside=EVERYTHING)
_TRAINING = Reach(always=NOTHING)  # they change what is learned; target.py judges them
_MEMORY = Reach(always=NOTHING)  # they trade time for memory, into which a job that is searched fits

REACH: Mapping[str, Reach] = {
    "accumulation": Reach(always=STEP),
    "activation_checkpointing": _MEMORY,
    "allocator": Reach(always=EVERYTHING),
    "batch_size": _TRAINING,
    "batches_by_index": _READING,
    "cache": _READING,
    "cache_decoded_images": _READING,
    "channels_last": Reach(always=COMPUTING | {Part.TRANSFER}),  # images are converted on their way to the device
    "clipping": _TRAINING,
    "communication": Reach(always=frozenset({Part.BACKWARD})),
    "compile": Reach(always=COMPUTING),
    "conv_bn_bias": Reach(always=COMPUTING | {Part.OPTIMIZER}),  # there are fewer tensors to update
    "cudnn_autotune": Reach(always=COMPUTING),
    "device_metrics": Reach(always=frozenset({Part.PYTHON}), off_cpu=STEP),
    "device_prefetch": _READING,
    "device_transform": _READING,
    "evaluation_batch": Reach(always=frozenset({Part.EVALUATION})),
    "evaluation_without_gradients": Reach(always=frozenset({Part.EVALUATION, Part.TURN})),
    **dict.fromkeys(
        # What a script does slowly can be in any part of its step, or before the first one.
        (
            "fix_anomaly_detection",
            "fix_blocking_transfer",
            "fix_cache_emptied",
            "fix_graph_kept",
            "fix_list_of_arrays",
            "fix_made_on_host",
            "fix_outputs_kept",
            "fix_read_every_step",
            "fix_synchronized",
            "fix_tensor_copied",
        ),
        Reach(always=EVERYTHING),
    ),
    "fix_benchmark": Reach(always=COMPUTING),
    "fix_gradients_zeroed": Reach(always=STEP),
    "fix_tf32_off": Reach(always=COMPUTING | {Part.OPTIMIZER, Part.TRANSFER}),
    "flush_denormals": Reach(always=EVERYTHING),
    "fused_operators": Reach(always=COMPUTING),
    "fused_optimizer": Reach(always=frozenset({Part.OPTIMIZER}), off_cpu=STEP),
    "in_memory": _READING,
    "learning_rate": _TRAINING,
    "loader_workers": _READING,
    "microbatch": Reach(always=STEP),
    # Restarted workers are slow in their first batches; and while they are forks of the training process, that must
    # copy the pages it writes to: what is updated.
    "persistent_workers": Reach(always=frozenset({Part.DATA_WAIT, Part.OPTIMIZER, Part.TURN})),
    "pin_memory": _READING,
    "pipeline": _MEMORY,
    # tf32 is process-wide, for products in an optimizer or a device transform as well.
    "precision": Reach(always=COMPUTING | {Part.OPTIMIZER, Part.TRANSFER}),
    "prefetch": Reach(always=LOADING),  # workers do the same work, only sooner or later
    "schedule": _TRAINING,
    "shard": _MEMORY,
    "stop_at": _TRAINING,
    "tensor": Reach(always=STEP),
    "threads": Reach(always=EVERYTHING),
}

SMALL_OPERATIONS = 0.25  # how much of the symptom of many small operations is assumed, as nobody counts them
COUNTED = frozenset({"SLOW_ALLOCATION"})  # symptoms whose events are counted; the seconds of one are measured
OF_A_FAULT = 3.0  # times its measured seconds are saved at most: new pages also push others out of the cache
COUNTS = 0.02  # share of the planned run from which a counted symptom is worth a remedy
SLACK_OF_THREADS = 1.2  # few steps are timed with one thread
RARELY = frozenset({"flush_denormals"})  # techniques that help only in jobs with tiny numbers, which no budget shows

REMEDIED: Mapping[str, Parts] = {
    "SLOW_MATRIX_PRODUCT": frozenset({Part.FORWARD, Part.BACKWARD, Part.EVALUATION}),
    "SLOW_CONVOLUTION": frozenset({Part.FORWARD, Part.BACKWARD, Part.EVALUATION}),
    "MANY_SMALL_OPERATIONS": frozenset({Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER, Part.PYTHON}),
    "SLOW_OPTIMIZER": frozenset({Part.OPTIMIZER}),
    "MEMORY_FULL": NOTHING,
    "SLOW_LOADING": frozenset({Part.DATA_WAIT, Part.TRANSFER, Part.TURN}),
    "DEVICE_IDLE": frozenset({Part.DATA_WAIT, Part.TRANSFER, Part.PYTHON}),
    "SLOW_ALLOCATION": frozenset({Part.FORWARD, Part.BACKWARD}),
    "SLOW_CONVERGENCE": NOTHING,
    "UNSTABLE_TRAINING": NOTHING,
    "SLOW_COMMUNICATION": frozenset({Part.BACKWARD}),
    "SLOW_EVALUATION": frozenset({Part.EVALUATION, Part.TURN}),
}
"""Symptom -> the parts in which it shows. It only orders what is tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """most_gain: on the time to finish the planned run, 1 or more; an upper bound, infinite where there is none.

    promise: share of the planned run, 0 to 1, in which the symptom shows that the technique treats.
    counted: the same, of a symptom that is counted in events; 0 of any other.
    reason: a sentence for a choice that is skipped because its bound is too small to be seen.
    """

    most_gain: float
    promise: float
    reason: str
    counted: float = 0.0


def parts_of(technique: str, around: Around) -> Parts:
    """What a technique can shorten; everything for one that is not in the table."""
    reach = REACH.get(technique)
    if reach is None:
        return EVERYTHING
    parts = reach.always
    parts |= reach.reading_beside if around.reads_beside else NOTHING
    return parts if around.on_cpu else parts | reach.off_cpu


def is_for_turns(technique: str) -> bool:
    """Whether it shortens the time between two epochs, and not every part of the run alike."""
    reach = REACH.get(technique)
    return reach is None or (Part.TURN in reach.always and reach.always != EVERYTHING)


def bounds_of(budget: Budget, run: PlannedRun, around: Around, treats: Mapping[str, str]) -> dict[str, Bound]:
    """The bound of every technique, by its name. treats: technique -> the name of its symptom, as the survey says.

    Raises InvalidMeasurement for a budget that cannot be believed.
    """
    found = dict[str, Bound]()
    for technique, symptom in treats.items():
        parts = parts_of(technique, around)
        shows = REMEDIED.get(symptom, EVERYTHING) & parts
        counts = symptom in COUNTED and around.on_cpu
        promise = share(budget, run, shows) * _presence(symptom, budget, around) * _part(technique, around)
        bound = Bound(
            most_gain=most_gain(budget, run, parts),
            promise=promise,
            reason=reason(budget, run, parts),
            counted=promise if counts else 0.0,
        )
        if technique == "threads" and around.one_thread:
            bound = _by_one_thread(bound, around)
        found[technique] = _by_faults(bound, budget, around) if counts and not around.reads_beside else bound
    return found


def _by_faults(bound: Bound, budget: Budget, around: Around) -> Bound:
    """Of a technique that shortens page faults, which nobody counts in loader workers."""
    left = budget.step - OF_A_FAULT * around.fault_seconds
    if left <= 0 or budget.step / left >= LEAST_GAIN:
        return bound
    cost = f"{100 * around.fault_seconds / budget.step:.2g} %"
    few = f"little to gain: page faults of newly allocated memory take {cost} of a step"
    return replace(bound, most_gain=budget.step / left, reason=few)


def _by_one_thread(bound: Bound, around: Around) -> Bound:
    most = max(SLACK_OF_THREADS * (around.threads // 2) / around.one_thread, 1.0)
    why = f"a step takes {around.one_thread:.2f} times as long with one thread as with {around.threads}"
    return replace(bound, most_gain=most, reason=why)


def _presence(symptom: str, budget: Budget, around: Around) -> float:
    """How much of a symptom there is, from 0 to 1, by the budget's steps."""
    computing = budget.forward + budget.backward
    if symptom == "SLOW_ALLOCATION" and around.on_cpu and computing > 0:
        return min(1.0, around.fault_seconds / computing)
    return SMALL_OPERATIONS if symptom == "MANY_SMALL_OPERATIONS" else 1.0


def _part(technique: str, around: Around) -> float:
    """Of what a technique treats, the part that it can remove. Loader workers only move work to other cores, and on a
    CPU the model computes on all of them."""
    return 1 - 1 / around.cores if technique == "loader_workers" and around.on_cpu else 1.0


def order(candidates: Sequence[Choice], bounds: Mapping[str, Bound]) -> list[Choice]:
    """The same candidates in the order in which they are tried: first what treats a counted symptom, then the most
    promising, last what rarely helps. Of equal promise, what claims to preserve less comes first; else the order stays.

    By promise and not by bound: a generous bound only says that much may be gained. A further value of a technique
    promises half of the one before it: a search without time for all tries each remedy before a second value of one.
    """
    before, places = Counter[str](), list[tuple[tuple[bool, bool, float, int], Choice]]()
    for choice in candidates:
        bound = bounds.get(choice.technique)
        promise = (1.0 if bound is None else bound.promise) / 2 ** before[choice.technique]
        before[choice.technique] += 1
        claim = Preserves.TRAINING if choice.preserves is None else choice.preserves
        place = choice.technique in RARELY, not is_counted(choice, bounds), -promise, -claim
        places.append((place, choice))
    return [choice for _, choice in sorted(places, key=itemgetter(0))]


def is_counted(choice: Choice, bounds: Mapping[str, Bound]) -> bool:
    """Whether it treats a counted symptom of which there is much: a fact, where a bound is a possibility."""
    bound = bounds.get(choice.technique)
    return bound is not None and bound.counted >= COUNTS
