"""A plan: the techniques that a job runs with, where they were proven, and which were rejected.

The fields of these records are the keys of plan.toml: a renamed field would make old plans unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hasten.facts.choice import Choice, Value
from hasten.facts.scripts.script_places import ScriptPlaces

SCHEMA = 1
DEFAULT_PLAN = "plan.toml"  # that a search writes without --output


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """The job that a plan was proven for. With another job, a plan runs with a warning that names the differences."""

    source: str  # the job's name: path/file.py:function or package.module:function
    parameters: int
    shapes: str  # digest over the names, shapes and dtypes of all parameters and buffers
    batch_size: int
    samples: int | None  # None for an iterable without a length


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenOn:
    cores: int
    memory_bytes: int
    accelerator: str | None  # None on a machine without one
    torch: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Between:
    """Seconds of the planned run, by a fast and by a slow window: at least eight of ten windows are between them.

    It shows how much the machine's speed varied, and is no confidence interval of the mean.
    """

    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Total:
    """Seconds of the planned run without and with the plan, from the start of `hasten train` to its end.

    one_off_seconds: paid once: imports, building the job, compiling, the last checkpoint.
    break_even_step: when shorter steps have paid back the plan's one-off cost; 0 where it costs no more than the
        baseline, None where its steps alone never pay it back.
    baseline_between, planned_between: their spread, the second from the first and the ends of the ratio's interval;
        None in a plan of an older version.
    process_seconds: the part of one_off_seconds that no plan changes: imports, the last checkpoint.
    """

    baseline_seconds: float
    planned_seconds: float
    one_off_seconds: float
    break_even_step: int | None = None
    baseline_between: Between | None = None
    planned_between: Between | None = None
    process_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Speedup:
    """How many times as fast: the median of paired ratios with its 95 % interval."""

    ratio: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.ratio:.2f}× ({self.low:.2f}–{self.high:.2f}, {self.pairs} pairs)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """How a claim was proven on the job: by gradients, or by losses.

    gradient_error: of one step against a high-precision reference, in multiples of the baseline's error.
    bound: the largest that it may be.
    losses: the result of short runs against the baseline, in a sentence.
    """

    gradient_error: float | None = None
    bound: float | None = None
    losses: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedChoice:
    """A choice with its evidence, which a plan written by hand does not have.

    place: its file and line, for errors; empty in a plan made in code. It does not count in comparisons.
    """

    choice: Choice
    speedup: Speedup | None = None
    proof: Proof | None = None
    place: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    technique: str
    reason: str
    value: Value | None = None

    @property
    def what(self) -> str:
        """As a plan writes it; the technique alone where no value of it was tried."""
        return self.technique if self.value is None else str(Choice(technique=self.technique, value=self.value))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The techniques that a run uses, as a plan.toml says them, and how they were found.

    choices: the techniques, each with its value, its speed-up and its proof.
    job, machine: that the plan was proven on; None in a plan written by hand.
    total: seconds of the whole run, predicted without and with the plan.
    rejected: what was tried and is not in the plan, with the reason.
    not_tried: technique -> why it, or what values of it, were not tried.
    schema: version of the plan's format.
    script: where a training script does what the choices change; None in the plan of a job.
    """

    schema: int = SCHEMA
    job: Fingerprint | None = None
    machine: ProvenOn | None = None
    total: Total | None = None
    choices: tuple[PlannedChoice, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    not_tried: Mapping[str, str] = field(default_factory=dict[str, str])
    script: ScriptPlaces | None = None

    def value_of(self, technique: str) -> Value | None:
        """None for a technique that the plan does not choose."""
        return next((item.choice.value for item in self.choices if item.choice.technique == technique), None)


def make_plan(**settings: Value | tuple[Value, Mapping[str, Value]]) -> Plan:
    """A plan written in Python: make_plan(precision="bf16", compile=("default", {"dynamic": True})).

    settings: technique name -> its value, or (value, options). They claim nothing about what is preserved: see Choice.
    """
    choices: list[PlannedChoice] = []
    for technique, setting in settings.items():
        value, options = setting if isinstance(setting, tuple) else (setting, dict[str, Value]())
        choice = Choice(technique=technique, value=value, options=options)
        choices.append(PlannedChoice(choice=choice))
    return Plan(choices=tuple(choices))


def drift(plan: Plan, job: Fingerprint, machine: ProvenOn) -> list[str]:
    """In words, all differences between where a plan was proven and where it runs, the most important first; empty for
    a plan that was never proven."""
    return [
        f"{name.replace('_', ' ')}: proven with {getattr(proven, name)}, here {getattr(here, name)}"
        for proven, here, names in (
            (plan.job, job, ("parameters", "shapes", "batch_size", "samples")),
            (plan.machine, machine, ("accelerator", "cores", "memory_bytes", "torch")),
        )
        for name in names
        if proven is not None and getattr(proven, name) != getattr(here, name)
    ]
