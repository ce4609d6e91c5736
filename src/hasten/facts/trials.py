"""What a tuner found out, trial by trial: the records in the file of trials that lies beside a plan.

The file has one JSON object a line, each a record of this module under its class's name. It is the tuner's memory, from
which an interrupted search goes on, and the source of the report. It is data: whoever reads it believes nothing of it
but numbers and texts, and whatever has not the shape of a record is refused.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from hasten.errors import PlanError, StorageFailed
from hasten.facts.choice import Choice, Preserves, Speedup, Value
from hasten.facts.plan import Between, Fingerprint, ProvenOn

Numbers = tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Surveyed:
    """The job, the machine and the planned run that all other records belong to. The first line."""

    key: str  # digest of all that a trial depends on: the job's source, its data's and model's shapes, the machine
    job: str  # path/file.py:function
    device: str
    machine: str  # as a person is told it
    environment: Mapping[str, str]  # name -> version: hasten, python, torch
    fingerprint: Fingerprint
    proven_on: ProvenOn
    total_steps: int | None  # optimizer steps of the planned run; None where the data does not tell
    total_epochs: int | None
    evaluations: int
    refused: Mapping[str, str]  # technique -> why it is not tried here
    seed: int  # the job's
    ceiling: Preserves  # the loosest class that was allowed
    stops_early: bool = False  # early stopping can end the planned run before; all totals are of the whole
    process_seconds: float = 0.0  # that the process takes around its training, whatever the plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Where the seconds of one optimizer step go, as means over the steps that were looked at."""

    arm: str  # "plain" or "planned"
    data_wait: float
    transfer: float  # to the device
    forward: float  # with the loss
    backward: float
    optimizer: float  # clipping, the finite check and the update
    python: float  # what is left: the loop, logging, the gaps between operations
    evaluation: float  # seconds of one evaluation of the whole, not of a step
    steps: int  # that were looked at

    @property
    def step(self) -> float:
        return self.data_wait + self.transfer + self.forward + self.backward + self.optimizer + self.python


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What the planned run takes under one plan, in seconds, and the most memory in bytes.

    between: the spread of the total by the windows of its heat; of the plain job, by those of the heats that it was the
    base of and of the confirmation. None of a single window.
    """

    one_off: float  # imports, building the job, the first batch, compiling, caches, the last checkpoint: all paid once
    step: float
    turn: float  # the wait for the first batch of every epoch after the first
    evaluation: float
    total: float  # of the whole planned run, by this arm's own median window
    peak_bytes: int
    between: Between | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The plain job against itself in a second process: what no difference looks like here."""

    speedup: Speedup
    window_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Plain:
    """The job as it is, by the last heat that it was the base of. The last one counts."""

    costs: Costs


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """One choice beside the plan without it.

    verdict: "faster", "no difference", "slower", "failed" or "skipped"; the reason says why in a sentence.
    speedup: of the seconds to finish the planned run; None where nothing was measured. cut_short: it left before its
    answer was known, for want of time or for another's lead: another search asks again.
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
    """Whether one choice preserves what it claims, on this job, in the plan that it is to be part of.

    gradient_error: in multiples of the plain job's; None where it was not judged by its gradients. by_losses: it was
    judged by those of short runs beside the plain job, as the reason tells. inconclusive: it passes because no harm was
    seen, and the reason says how large one would have been seen. unanswered: an arm failed on the way, so it does not
    pass, and another search asks again.
    """

    choice: Choice
    passes: bool
    reason: str
    gradient_error: float | None = None
    bound: float | None = None
    by_losses: bool = False
    inconclusive: bool = False
    unanswered: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Earned:
    """What a choice of the whole plan is worth: the plan without it takes so many times as long."""

    choice: Choice
    speedup: Speedup
    kept: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmed:
    """A whole plan beside the untouched job on windows of their own, and beside itself without each of its choices.

    Where there are no choices, no plan was left: then speedup and planned are those of the job in a second process.
    """

    choices: tuple[Choice, ...]
    speedup: Speedup
    noise: Speedup
    plain: Costs
    planned: Costs
    earned: tuple[Earned, ...]

    @property
    def planned_seconds(self) -> float:
        """Of the planned run: the plain job's over the ratio, which compares windows next to each other. The median of
        the plan's own windows is another estimate, and would contradict the ratio that stands beside it."""
        return self.plain.total / self.speedup.ratio if self.speedup.ratio else math.inf

    @property
    def planned_between(self) -> Between | None:
        """As the plain job's windows and the ends of the ratio's interval have it."""
        plain, ratio = self.plain.between, self.speedup
        if plain is None or not plain.low <= plain.high or not 0 < ratio.low <= ratio.high:
            return None
        return Between(low=plain.low / ratio.high, high=plain.high / ratio.low)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of the way from the plain job to the plan: the seconds of the planned run once the choice is added."""

    choice: Choice | None  # None for the plain job
    total: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """Losses of both arms from the same seeds: one curve a seed, one value an optimizer step."""

    seeds: tuple[int, ...]
    plain: tuple[Numbers, ...]
    planned: tuple[Numbers, ...]
    verdict: str
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Learning rate and momentum of the planned run, at these steps."""

    steps: tuple[int, ...]
    rates: Numbers
    momenta: Numbers  # empty where the optimizer has none


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes held at the end of each window, in the order they ran."""

    arm: str
    bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """How long whole runs with one choice, and without it, took to what the job itself comes to: its target.

    Both runs of a seed have the same target: what the plan that was confirmed, or the job where none was, has at its
    end from that seed. All tuples have one value a seed. Seconds and steps are those up to the first evaluation that
    was at least as good; None where none was.
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
    speedup: Speedup | None  # of the seconds; None where it was not reached from every seed, or from one seed alone
    kept: bool
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A search came to its end, and nobody interrupted it. choices: of the plan that it wrote."""

    choices: tuple[Choice, ...]
    seconds: float


Record = (
    Surveyed | Budget | Noise | Plain | Tried | Proven | Confirmed | Step | Curves | Rates | Memory | Reached | Ended
)
RECORDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(Record)}
LONGEST_LINE = 1 << 26
MOST_CHARACTERS = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Doing:
    """What a search is at; no record of the file. ratios: of the arms that run, so far, by the name of their choice;
    seconds_left: of what comes on top of the time that the search was given; of_search: seconds that are left of that,
    None where nobody counts them; stays: it is to be read later, too."""

    what: str
    done: int = 0
    whole: int = 0
    ratios: Mapping[str, float] = field(default_factory=dict[str, float])
    seconds_left: float | None = None
    of_search: float | None = None
    stays: bool = False


def line_of(record: Record) -> str:
    """The record as one line of JSON, without its end."""
    return json.dumps({"record": type(record).__name__, **asdict(record)}, ensure_ascii=True, allow_nan=False)


def records_of(lines: Iterable[str], where: str = "trials") -> list[Record]:
    """The records that lines state. A line that is no JSON was cut short by a crash, and is left out.

    Raises PlanError, with the line, for any other that is no record.
    """
    found: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            table = json.loads(line)
        except (ValueError, RecursionError):
            continue
        try:
            found.append(_built(RECORDS[table.pop("record")], table))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            what = f"is no record of a trial: {type(error).__name__}: {error}"[:300]
            raise PlanError(
                what, where=f"{where}:{number}", fix="move the file away, and run the trials again"
            ) from None
    return found


def trials_beside(plan: Path) -> Path:
    """Where the records of a plan's trials lie: plan.trials.jsonl for plan.toml. No other plan has the same: for one of
    another ending, such as plan.v2, they lie in plan.v2-trials.jsonl."""
    name = plan.name
    return plan.with_name(f"{name[:-5]}.trials.jsonl" if name.endswith(".toml") else f"{name}-trials.jsonl")


def read_trials(path: Path) -> list[Record]:
    """The records of a file. Raises as records_of does, and StorageFailed when it cannot be read."""
    return records_of(_lines(path), str(path))


def _lines(path: Path) -> Iterator[str]:
    """The file's lines; what is no UTF-8 becomes a mark that no record has."""
    left = MOST_CHARACTERS
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            while line := file.readline(LONGEST_LINE + 1):
                left -= len(line)
                if len(line) > LONGEST_LINE or left < 0:
                    what = "is larger than a file of trials can be"
                    raise PlanError(what, where=str(path), fix="move the file away, and run the trials again")
                yield line
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageFailed(f"cannot be read: {reason}", where=str(path), fix="make the file readable") from error


def _built(kind: Any, value: Any) -> Any:
    """The value as its annotation says, checked all the way down. Raises ValueError or TypeError where it cannot be."""
    if is_dataclass(cast("object", kind)):
        hints = get_type_hints(kind)
        unknown = value.keys() - {each.name for each in fields(kind)}
        if unknown:
            raise ValueError(f"there is no {min(unknown)} in such a record")
        return kind(**{name: _built(hints[name], item) for name, item in value.items()})
    if kind == Value:
        return _plain_value(value)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in inner:
            return None
        return _built(next(each for each in inner if each is not types.NoneType), value)
    if origin is tuple:
        return tuple(_built(inner[0], item) for item in _of(list, value))
    if origin is not None:  # a mapping
        return {_of(str, key): _built(inner[1], item) for key, item in _of(dict, value).items()}
    if kind is float:
        return float(_of((int, float), value))
    if kind is Preserves:
        return Preserves(_of(int, value))
    return _of(kind, value)


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{str(value)[:60]} is {type(value).__name__}")
    return value


def _plain_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain_scalar(item) for item in cast("list[Any]", value)]
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    return value if isinstance(value, bool) else _of((str, int, float), value)


LEAST_GAIN = 1.01  # a speed-up below this is no gain, however sure it is
EQUAL_PROCESSES = 1.03  # processes of the same code differ by so much for as long as they live


class Verdict(StrEnum):
    """On a plan as a whole. It is proven where it is FASTER."""

    FASTER = "faster"
    WITHIN_NOISE = "no farther off than the job beside itself"
    TOO_LITTLE = "gains less than 1 %"
    NO_DIFFERENCE = "no difference"
    SLOWER = "slower"


def verdict_of(confirmed: Confirmed) -> Verdict:
    found, noise = confirmed.speedup, confirmed.noise
    if found.high < 1:
        return Verdict.SLOWER
    if not found.low > 1:
        return Verdict.NO_DIFFERENCE
    farthest = max(noise.high, 1 / noise.low) if noise.low > 0 else 1.0  # that equal arms lie apart
    if (noise.low > 1 or noise.high < 1) and found.low <= farthest:
        return Verdict.WITHIN_NOISE
    if found.ratio < LEAST_GAIN:
        return Verdict.TOO_LITTLE
    return Verdict.FASTER if found.ratio > farthest else Verdict.WITHIN_NOISE


def differs_from_itself(noise: Speedup) -> bool:
    """Whether the job surely is faster or slower in a second process, by more than processes of the same code are.
    Then something else changed its speed."""
    return noise.low > EQUAL_PROCESSES or noise.high < 1 / EQUAL_PROCESSES


def is_proven(confirmed: Confirmed) -> bool:
    """Whether there is a plan, and it is faster than the job by more than the job is faster, or slower, than itself."""
    return bool(confirmed.choices) and verdict_of(confirmed) is Verdict.FASTER
