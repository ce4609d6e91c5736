"""Where a training script does what a plan changes: facts that a plan keeps, so that the script can be edited again
without being observed again. They are data; no code of a plan is ever run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceCall:
    """A call, a loop or a finding of the doctor in a source file. file: relative to the script's folder. line,
    end_line: from 1; column, end_column: bytes of UTF-8 from 0, as Python's ast counts; the end is behind it."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PassPlace:
    """Calls of one function, in which the first forward of a pass and its backward run."""

    forward: SourceCall
    backward: SourceCall


@dataclass(frozen=True, kw_only=True, slots=True)
class WrapPlace:
    """The call that makes a DistributedDataParallel of a module, and the module's name in the calling function."""

    name: str
    call: SourceCall


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerPlace:
    """Where an object of another library is made whose arguments decide how the script trains. kind: library and
    class, such as "lightning.Trainer". precision: that it has, "" for float32. optimizer: class of the one that is
    stepped."""

    kind: str
    call: SourceCall
    precision: str
    optimizer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptPlaces:
    """Of a script; what is None is not in its own source, and `missing` says why, by the name of the field.

    script: the file's name, or the module's after -m. sources: file, relative to the script's folder -> SHA-256 of its
    bytes when it was observed. loader: makes the DataLoader that the steps read. optimizers: make those that are
    stepped, the one that counts the steps first. model: a name of the trained module in the function that calls named,
    which makes the first optimizer. wrapped: where that is a DistributedDataParallel of another module. forward: the
    call of the module in a step; images: the positions of its arguments that are four-dimensional tensors. passes: of a
    step, each with a backward. autocast: of the script's own, as in Seen. decodings: calls that open and convert an
    image, in a data set. evaluations: loops that evaluate under gradients. findings: of the doctor, by the name of the
    technique that fixes them. given: names of the options on the command line that was observed, without their values.
    """

    script: str
    sources: Mapping[str, str]
    device: str
    optimizers: tuple[SourceCall, ...]
    loader: SourceCall | None = None
    model: str | None = None
    named: SourceCall | None = None
    wrapped: WrapPlace | None = None
    forward: SourceCall | None = None
    images: tuple[int, ...] = ()
    passes: tuple[PassPlace, ...] = ()
    autocast: str = ""
    decodings: tuple[SourceCall, ...] = ()
    evaluations: tuple[SourceCall, ...] = ()
    findings: Mapping[str, tuple[SourceCall, ...]] = field(default_factory=dict[str, tuple[SourceCall, ...]])
    trainer: TrainerPlace | None = None
    given: tuple[str, ...] = ()
    missing: Mapping[str, str] | None = None
