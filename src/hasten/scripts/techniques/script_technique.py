"""The record that ends every file of this folder: what a technique of scripts is called, does and preserves.

A plan is read and its edits are made before the script has loaded torch, so no file here loads it when it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

from hasten.facts.choice import Preserves
from hasten.facts.scripts.script_places import ScriptPlaces
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.scripts.edits.edit import Edit

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

Sources = Callable[[str], str]
"""File, relative to the script's folder -> its text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningLoader:
    """Of the script, in a process that runs it: the one that the steps read. alike: others that the same call has made.
    rebuilt_by: the library that made it from the script's own; "" for none. epochs: of the whole training."""

    loader: DataLoader[Any] | None
    alike: Sequence[DataLoader[Any]] = ()
    rebuilt_by: str = ""
    epochs: int | None
    memory_bytes: int  # of the machine


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptTechnique:
    """A plan writes `true` for it. Its headline and manual are those of its file; page: those of one among several.

    edits(places, sources): raises PlanError, with the reason, where the source does not allow it. why_not(running): a
    reason of the running script's; "" where there is none. fills_first_epoch: it gains from the second epoch on.
    """

    name: str
    stage: Stage
    treats: Symptom
    preserves: Preserves
    costs: tuple[str, ...]
    source: str
    edits: Callable[[ScriptPlaces, Sources], list[Edit]]
    why_not: Callable[[RunningLoader], str] = lambda running: ""
    fills_first_epoch: bool = False
    values: str = "true; of a script, not of a job"
    page: str = ""

    @property
    def manual(self) -> str:
        return self.page or cleandoc(sys.modules[self.edits.__module__].__doc__ or "")

    @property
    def headline(self) -> str:
        return self.manual.partition("\n")[0]
