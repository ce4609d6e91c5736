"""What a finding in a script costs at most, by the seconds that a trial of the script has measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hasten.doctor.rules import ALL
from hasten.facts.finding import Finding, Price
from hasten.facts.scripts.script_times import ScriptTimes
from hasten.facts.scripts.seen import Length
from hasten.measure.speedup_bound import Part

_PARTS = {rule.code: rule.part for rule in ALL if rule.part is not None}


def with_prices(findings: Iterable[Finding], times: ScriptTimes, length: Length) -> list[Finding]:
    """Of the whole run; where its length is not known, of a step, or of what happens between two epochs. None for a
    finding whose rule names no part of a training."""
    return [replace(each, price=price_of(_PARTS.get(each.code), times, length)) for each in findings]


def price_of(part: Part | None, times: ScriptTimes, length: Length) -> Price | None:
    run = times.run(length)
    if part is None:
        return None
    if part is Part.TURN:
        return _price_of_turns(times, length, run)
    seconds = times.parts[part]
    if run is None or length.steps is None:
        return Price(seconds=seconds, whole_seconds=times.step, whole="step")
    return Price(seconds=seconds * length.steps, whole_seconds=run, whole="run")


def _price_of_turns(times: ScriptTimes, length: Length, run: float | None) -> Price | None:
    if times.turn is None:
        return None
    turns = times.turns(length)
    if run is None or turns is None:
        return Price(seconds=times.turn, whole_seconds=times.turn, whole="turn")
    return Price(seconds=turns, whole_seconds=run, whole="run")
