"""The results of a search, trial by trial: the records in the trials file beside a plan.

The file has one JSON object a line: a record of this module, with its class's name. An interrupted search continues
from it, and the report is made from it. Names of classes and fields are those in the file. It is read as untrusted
text: what is not a record is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Any, get_args

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Between, Fingerprint, ProvenOn, Speedup
from hasten.facts.record_reading import read_record
from hasten.regular_files import open_regular, unreadable

Numbers = tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Surveyed:
    """The job, the machine and the planned run that all other records belong to. The first line."""

    key: str  # digest of all that a trial depends on: the job's source, its data's and model's shapes, the machine
    job: str  # path/file.py:function
    device: str
    machine: str  # in words
    environment: Mapping[str, str]  # name -> version: hasten, python, torch
    fingerprint: Fingerprint
    proven_on: ProvenOn
    total_steps: int | None  # optimizer steps of the planned run; None where the data has no length
    total_epochs: int | None
    evaluations: int  # beside those of a script, which are part of its turns between epochs
    refused: Mapping[str, str]  # technique -> why it is not tried here
    seed: int  # the job's
    ceiling: Preserves  # the loosest class that was allowed
    stops_early: bool = False  # early stopping may end the planned run earlier; totals are of the whole
    options: tuple[str, ...] = ()  # --set and -- of the command: how the job was loaded
    process_seconds: float = 0.0  # of the process outside of training, whatever the plan
    ends_with_turn: bool = False  # a script evaluates and saves after its last epoch as it does between two


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Where the seconds of one optimizer step go: means over `steps` steps."""

    arm: str  # "plain" or "planned"
    data_wait: float
    transfer: float  # to the device
    forward: float  # with the loss
    backward: float
    optimizer: float  # clipping, the finite check and the update
    python: float  # the rest: the loop, logging, the gaps between operations
    evaluation: float  # seconds of one evaluation of the whole, not of a step
    steps: int

    @property
    def step(self) -> float:
        return self.data_wait + self.transfer + self.forward + self.backward + self.optimizer + self.python


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What the planned run takes with one plan, in seconds, and the peak memory in bytes.

    windows: whose mean the total is, of its round; of the baseline, of all rounds so far. 0 where that is not known.
    between: the spread of the total over them. None for a single window.
    """

    one_off: float  # imports, building the job, the first batch, compiling, caches, the last checkpoint: all paid once
    step: float
    turn: float  # the wait for the first batch of every epoch after the first
    interruptions: float = 0.0  # of the whole run: what a script evaluates and saves within its epochs
    evaluation: float
    total: float  # of the whole planned run
    peak_bytes: int
    windows: int = 0
    between: Between | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The baseline against itself in a second process: how much equal arms differ on this machine."""

    speedup: Speedup
    window_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Plain:
    """The baseline, by all rounds so far. The last record counts."""

    costs: Costs


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """One choice against the plan without it.

    verdict: "faster", "no difference", "slower", "failed" or "skipped". reason: why, in a sentence.
    speedup: of the seconds to finish the planned run; None where nothing was measured.
    cut_short: dropped before it reached significance; another search tries it again.
    """

    choice: Choice
    on: tuple[Choice, ...]  # the plan that it was added to
    verdict: str
    reason: str
    speedup: Speedup | None = None
    costs: Costs | None = None
    cut_short: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Proven:
    """Whether one choice preserves what it claims, on this job, in the plan that it is meant for.

    gradient_error: in multiples of the baseline's; None where gradients were not compared.
    by_losses: whether losses of short runs were compared with the baseline's.
    inconclusive: it passes because no harm was found; the reason says how large a harm would have been found.
    unharmed: the losses rule out a harm as large as the margin.
    unanswered: an arm failed, so it does not pass; another search tries it again.
    """

    choice: Choice
    passes: bool
    reason: str
    gradient_error: float | None = None
    bound: float | None = None
    by_losses: bool = False
    inconclusive: bool = False
    unharmed: bool = False
    unanswered: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Earned:
    """What a choice contributes: how many times as long the plan takes without it."""

    choice: Choice
    speedup: Speedup
    kept: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmed:
    """The whole plan against the baseline, and against itself without each of its choices, on new windows.

    Without choices, speedup and planned are those of the baseline in a second process.
    """

    choices: tuple[Choice, ...]
    speedup: Speedup
    noise: Speedup
    plain: Costs
    planned: Costs
    earned: tuple[Earned, ...]

    @property
    def planned_seconds(self) -> float:
        """The baseline's seconds over the ratio. The median of the plan's own windows is another estimate, and would
        contradict the ratio, which compares neighbouring windows."""
        return self.plain.total / self.speedup.ratio if self.speedup.ratio else math.inf

    @property
    def planned_between(self) -> Between | None:
        """From the baseline's windows and the ends of the ratio's interval."""
        plain, ratio = self.plain.between, self.speedup
        if plain is None or not plain.low <= plain.high or not 0 < ratio.low <= ratio.high:
            return None
        return Between(low=plain.low / ratio.high, high=plain.high / ratio.low)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """Losses of both arms from the same seeds: one curve per seed, one value per optimizer step. unharmed: as in
    Proven."""

    seeds: tuple[int, ...]
    plain: tuple[Numbers, ...]
    planned: tuple[Numbers, ...]
    verdict: str
    sentence: str
    unharmed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """How long whole runs with one choice, and without it, took to reach the target.

    The target of a seed is what the confirmed plan, or else the baseline, reaches at its end from that seed. All tuples
    have one value per seed. Seconds and steps are those up to the first evaluation that was at least as good; None
    where none was.
    """

    choice: Choice
    on: tuple[Choice, ...]  # the plan that it was added to
    metric: str
    higher_is_better: bool
    seeds: tuple[int, ...]
    targets: Numbers
    seconds_without: tuple[float | None, ...]
    steps_without: tuple[int | None, ...]
    seconds_with: tuple[float | None, ...]
    steps_with: tuple[int | None, ...]
    speedup: Speedup | None  # of the seconds; None where a seed did not reach the target, and for a single seed
    kept: bool
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A search ended without interruption. choices: of the plan that it wrote."""

    choices: tuple[Choice, ...]
    seconds: float


Record = Surveyed | Budget | Noise | Plain | Tried | Proven | Confirmed | Curves | Reached | Ended
RECORDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(Record)}
_NO_LONGER = ("Step", "Rates", "Memory")  # records of earlier versions, which are skipped
LONGEST_LINE = 1 << 26


@dataclass(frozen=True, kw_only=True, slots=True)
class Doing:
    """The progress of a search; no record of the file.

    ratios: so far, of the arms that run, by the name of their choice.
    seconds_left: of work beyond the search's time limit. of_search: seconds left of that limit; None without one.
    to_end: seconds that the search is expected to take until its result; None where an earlier one says it, or none.
    waits: whether it may continue sooner than in seconds_left, after which it gives up. stays: whether the line is to
    stay on the terminal.
    """

    what: str
    done: int = 0
    whole: int = 0
    ratios: Mapping[str, float] = field(default_factory=dict[str, float])
    seconds_left: float | None = None
    of_search: float | None = None
    to_end: float | None = None
    waits: bool = False
    stays: bool = False


def line_of(record: Record) -> str:
    """The record as one line of JSON, without its line end."""
    return json.dumps({"record": type(record).__name__, **asdict(record)}, ensure_ascii=True, allow_nan=False)


def records_of(lines: Iterable[str], where: str = "trials") -> list[Record]:
    """The records of these lines. A line that is no JSON was cut off by a crash, and is skipped.

    Raises PlanError, with the line number, for any other that is no record.
    """
    found: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            table = json.loads(line)
        except (ValueError, RecursionError):
            continue
        try:
            kind = table.pop("record")
            if kind not in _NO_LONGER:
                found.append(read_record(RECORDS[kind], table))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            what = f"is not a valid trial record: {type(error).__name__}: {error}"[:300]
            fix = "move the file away, and run hasten tune again"
            raise PlanError(what, where=f"{where}:{number}", fix=fix) from None
    return found


def trials_beside(plan: Path) -> Path:
    """The trials file of a plan: plan.trials.jsonl for plan.toml, plan.v2-trials.jsonl for plan.v2."""
    name = plan.name
    return plan.with_name(f"{name[:-5]}.trials.jsonl" if name.endswith(".toml") else f"{name}-trials.jsonl")


def read_trials(path: Path) -> list[Record]:
    """The records of a file. Raises as records_of does, and StorageFailed when it cannot be read."""
    return records_of(_lines(path), str(path))


def _lines(path: Path) -> Iterator[str]:
    """The file's lines; bytes that are no UTF-8 are replaced, so their line is no record."""
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace") as file:
            while line := file.readline(LONGEST_LINE + 1):
                if len(line) > LONGEST_LINE:
                    what = "is too large for a trials file"
                    raise PlanError(what, where=str(path), fix="move the file away, and run hasten tune again")
                yield line
    except OSError as error:
        raise unreadable(path, error) from error


LEAST_GAIN = 1.01  # a speed-up below this is no gain, however certain it is
NO_GAIN_ALONE = "no gain of its own was shown; the plan was proven with it"
EQUAL_PROCESSES = 1.03  # two processes of the same code differ by up to this factor


class Verdict(StrEnum):
    """On a whole plan. Only FASTER is proven."""

    FASTER = "faster"
    WITHIN_NOISE = "within the measurement error"
    TOO_LITTLE = "gains less than 1 %"
    NO_DIFFERENCE = "no difference"
    SLOWER = "slower"


def is_gain(found: Speedup) -> bool:
    """Whether it is significant, and large enough."""
    return found.low > 1 and found.ratio >= LEAST_GAIN


def why_no_gain(tried: Tried) -> str:
    """Beside the figures of a trial that shows neither a gain nor a loss; empty for any other."""
    if tried.cut_short:
        return "ended early: another choice was far ahead, or time ran out"
    found = tried.speedup
    if found is None or tried.verdict != "no difference":
        return ""
    if found.low <= 1 <= found.high:
        return "the interval contains 1"
    return "a gain below 1 %" if found.ratio > 1 else "slower, but perhaps by less than 1 %"


def verdict_of(confirmed: Confirmed) -> Verdict:
    found, noise = confirmed.speedup, confirmed.noise
    if found.high < 1:
        return Verdict.SLOWER
    if not found.low > 1:
        return Verdict.NO_DIFFERENCE
    farthest = farthest_of(noise)
    if (noise.low > 1 or noise.high < 1) and found.low <= farthest:
        return Verdict.WITHIN_NOISE
    if found.ratio < LEAST_GAIN:
        return Verdict.TOO_LITTLE
    return Verdict.FASTER if found.ratio > farthest else Verdict.WITHIN_NOISE


def farthest_of(noise: Speedup) -> float:
    """How much equal arms may differ at most, as a ratio above 1."""
    return max(noise.high, 1 / noise.low) if noise.low > 0 else 1.0


def differs_from_itself(noise: Speedup) -> bool:
    """Whether the baseline's speed differs between two processes by more than it should. Something else changed it."""
    return noise.low > EQUAL_PROCESSES or noise.high < 1 / EQUAL_PROCESSES


def beside_noise(found: Speedup, noise: Speedup) -> Speedup:
    """Its interval is widened by the farthest ratio of equal arms, where they differ by more than they should."""
    if not differs_from_itself(noise):
        return found
    reach = farthest_of(noise)
    return replace(found, low=found.low / reach, high=found.high * reach)


def is_proven(confirmed: Confirmed) -> bool:
    """Whether there is a plan, and it is faster than the baseline by more than two baselines differ."""
    return bool(confirmed.choices) and verdict_of(confirmed) is Verdict.FASTER
