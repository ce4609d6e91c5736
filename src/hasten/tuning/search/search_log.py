"""What a search was asked for, what it has found out, and how much of its time is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from hasten.facts.choice import Choice, Preserves
from hasten.facts.trials import Doing, Proven, Record, Tried
from hasten.tuning.search.candidates import OUT_OF_TIME, same
from hasten.tuning.trials.trial_outcome import ArmFailed

SHARE_OF_CURVES = 0.1  # of the search's time, for comparing losses


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """seconds: that the search may take, after which it tries nothing new; ceiling: the loosest class that is tried;
    only: names of techniques, None for all."""

    seconds: float = 60.0
    ceiling: Preserves = Preserves.STATISTICS
    only: tuple[str, ...] | None = None


@dataclass(kw_only=True, slots=True)
class SearchLog:
    """keep: receives every record at once; report: what the search is doing; known: records of an earlier search of the
    same key, whose trials are not repeated; lost_seconds: that other programs cost so far, which are not counted as the
    search's."""

    options: Options
    keep: Callable[[Record], None]
    report: Callable[[Doing], None]
    lost_seconds: Callable[[], float] = lambda: 0.0
    known: Sequence[Record] = ()
    tried: list[Tried] = field(default_factory=list[Tried])
    proofs: list[Proven] = field(default_factory=list[Proven])
    comparisons: int = 0  # that were run by this search
    needed_seconds: float = 0.0  # of a search that could try and prove anything, where this one could not; else 0
    began: float = field(default_factory=time.monotonic)
    _on_top: float = 0.0

    def __post_init__(self) -> None:
        report = self.report
        self.report = lambda doing: report(replace(doing, of_search=self.seconds_left))

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began

    @property
    def seconds_left(self) -> float:
        return self.options.seconds + self._on_top + self.lost_seconds() - self.seconds

    @contextmanager
    def on_top(self) -> Iterator[None]:
        """What is done within this block takes none of the search's time."""
        before, lost_before = self.seconds, self.lost_seconds()
        try:
            yield
        finally:
            self._on_top += self.seconds - before - (self.lost_seconds() - lost_before)

    def add(self, record: Tried | Proven) -> None:
        if isinstance(record, Tried):
            self.tried.append(record)
        else:
            self.proofs.append(record)
        self.keep(record)

    def add_failure(self, choices: Sequence[Choice], failure: ArmFailed, who: str = "the plan with it") -> None:
        """Of choices that went well alone, and whose plan then failed, or the job beside it."""
        for choice in choices:
            reason = f"{who} failed: {failure.reason}"
            self.add(Proven(choice=choice, passes=False, reason=reason, unanswered=True))

    def skip(self, skipped: Iterable[tuple[Choice, str]], base: tuple[Choice, ...]) -> None:
        """Choices that are not tried, each with the reason."""
        for choice, reason in skipped:
            self.add(Tried(choice=choice, on=base, verdict="skipped", reason=reason))

    @property
    def not_reached(self) -> list[str]:
        """Techniques of which no value was tried to the end, because the time ran out."""
        tried = {each.choice.technique for each in self.tried if each.verdict != "skipped" and not each.cut_short}
        late = dict.fromkeys(
            each.choice.technique for each in self.tried if each.reason == OUT_OF_TIME or each.cut_short
        )
        return [name for name in late if name not in tried]

    @property
    def not_combined(self) -> list[Tried]:
        """Of techniques that were tried, and that there was no time to try together with what joined the plan since:
        the best complete trial of each. One that is slower, or whose choice failed a proof, is not among them."""
        last = {str(each.choice): each for each in self.tried}
        before = [self.last_trial(each.choice) for each in last.values() if each.reason == OUT_OF_TIME]
        complete = [
            each for each in before if each and each.speedup and each.verdict != "slower" and not each.cut_short
        ]
        best = dict[str, Tried]()
        for each in sorted(complete, key=ratio_of, reverse=True):
            if self.is_sound(each.choice):
                best.setdefault(each.choice.technique, each)
        return [*best.values()]

    def remembered(self, choice: Choice, base: Sequence[Choice]) -> Tried | None:
        """The trial of a choice on top of these in an earlier search. None where there was none, where it failed, or
        where it ended before its result was known."""
        for tried in self.known:
            if not (isinstance(tried, Tried) and same(tried.choice, choice)):
                continue
            if tried.cut_short or tried.verdict in ("skipped", "failed"):
                continue
            if len(tried.on) == len(base) and all(map(same, tried.on, base)):
                return tried
        return None

    def last_trial(self, choice: Choice) -> Tried | None:
        """The last time that an arm was started for it; what was skipped may be tried later."""
        trials = [each for each in self.tried if same(choice, each.choice) and each.verdict != "skipped"]
        return trials[-1] if trials else None

    def winners(self, results: Iterable[Tried]) -> list[Choice]:
        """The fastest choice of every technique that was faster, and is sound, the fastest technique first."""
        faster = [tried for tried in results if tried.verdict == "faster" and self.is_sound(tried.choice)]
        best = dict[str, Choice]()
        for tried in sorted(faster, key=ratio_of, reverse=True):
            best.setdefault(tried.choice.technique, tried.choice)
        return list(best.values())

    def is_sound(self, choice: Choice) -> bool:
        """Whether no proof of it has failed."""
        return all(proof.passes for proof in self.proofs if same(proof.choice, choice))


def ratio_of(tried: Tried) -> float:
    return tried.speedup.ratio if tried.speedup is not None else 0.0
