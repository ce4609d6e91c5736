"""What a rule about models is: it decides from a look that was taken, and looks at nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hasten.doctor.contract import Paged
from hasten.facts.finding import Severity
from hasten.facts.profiles import Layer, ModelProfile


class FoundInModel(NamedTuple):
    """layer: where; None for the whole model. fix: where the rule's own words do not say it."""

    layer: Layer | None
    message: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelRule(Paged):
    code: str
    name: str
    severity: Severity
    fix: str
    check: Callable[[ModelProfile], Iterator[FoundInModel]]
    technique: str | None = None
