"""What people remember of an answer, and what it rests on; and this of a run that has ended."""

from __future__ import annotations

from dataclasses import dataclass

from hasten.facts.events import Finished
from hasten.report.display import decimal, duration, listed, many

_INCLUDED = "the seconds are of training, evaluations and checkpoints, without startup"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """headline: what a person can repeat, as 1.80× faster: 13.0 s → 7.3 s.
    small_print: intervals, how much was measured, the baseline, in lines; empty where the headline is all."""

    headline: str
    small_print: str = ""

    def __str__(self) -> str:
        small_print = self.small_print.replace("\n", "; ")
        return f"{self.headline} ({small_print})" if small_print else self.headline


def run_sentence(end: Finished) -> Sentence:
    """Of training. The small print says why it ended, which step's weights are kept, and what the seconds include."""
    results = listed([f"{name} {decimal(value)}" for name, value in end.results.items()], most=4)
    kept = f"; the weights are those of step {end.kept_step:,}" if end.results else ""
    return Sentence(
        headline=f"Trained {many(end.steps, 'step')} in {duration(end.seconds)}" + (f": {results}" if results else ""),
        small_print=f"{end.reason}{kept}\n{_INCLUDED}",
    )
