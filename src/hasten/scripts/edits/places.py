"""From what was observed to the places that a plan keeps, and from those to the edited sources."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.facts.scripts.script_places import ScriptPlaces, SourceCall
from hasten.facts.scripts.seen import Call, Seen, Stack
from hasten.regular_files import read_regular
from hasten.scripts.edits.edit import file_of
from hasten.scripts.edits.edited_source import edited_source
from hasten.scripts.edits.source_text import text_of
from hasten.scripts.edits.technique_edits import edits_of


def places_of(seen: Seen, script: Path) -> ScriptPlaces:
    """script: its file."""
    missing = dict[str, str]()

    def first(name: str, what: str, made: Stack, by: str = "") -> SourceCall | None:
        if made and not by and made[0].column >= 0:
            return _relative(made[0], script.parent)
        missing[name] = f"{what} is made by {by or 'a library'}, not by the script"
        return None

    loader = None
    if seen.loader is None:
        missing["loader"] = "the steps read no DataLoader"
    else:
        loader = first("loader", "the DataLoader", seen.loader.made, seen.loader.made_by)
    ordered = sorted(seen.optimizers, key=lambda each: each.number != seen.main)
    optimizers = [first("optimizers", "the optimizer", each.made, each.made_by) for each in ordered]
    own = [each for each in optimizers if each is not None]
    if not seen.model.names:
        missing["model"] = f"the script has no name for {seen.model.kind} where it makes its optimizer"
    if seen.window is None:
        missing["step"] = "one call does both forward and backward, so autocast cannot end between them"
    places = ScriptPlaces(
        script=script.name,
        sources={},
        device=seen.model.device,
        optimizers=tuple(own) if len(own) == len(optimizers) else (),
        loader=loader,
        model=seen.model.names[0] if seen.model.names else None,
        forward=first("forward", "the call of the model", seen.model.called),
        images=seen.model.images,
        step=None if seen.window is None else _relative(seen.window.forward, script.parent),
        backward=None if seen.window is None else _relative(seen.window.backward, script.parent),
        autocasts=seen.autocasts,
        missing=missing,
    )
    files = {script.name, *(each.file for each in _calls(places))}
    return replace(places, sources={file: _digest(script.parent / file) for file in sorted(files)})


def edited_sources(choices: Sequence[Choice], places: ScriptPlaces, folder: Path) -> dict[str, str]:
    """File, relative to the script's folder -> its source under a plan. Raises PlanError where a source does not allow
    it, or has changed since it was observed."""
    found = dict[str, str]()
    edits = edits_of(choices, places)
    for file in dict.fromkeys(map(file_of, edits)):
        data = read_regular(folder / file)
        if hashlib.sha256(data).hexdigest() != places.sources.get(file):
            what = "has changed since the plan was made for it"
            raise PlanError(what, where=str(folder / file), fix=f"run hasten tune {places.script}")
        try:
            found[file] = edited_source(text_of(data), [each for each in edits if file_of(each) == file])
        except PlanError as error:
            raise PlanError(error.what, where=error.where or str(folder / file), fix=error.fix) from error
    return found


def _digest(path: Path) -> str:
    return hashlib.sha256(read_regular(path)).hexdigest()


def _calls(places: ScriptPlaces) -> list[SourceCall]:
    found = (places.loader, *places.optimizers, places.forward, places.step, places.backward)
    return [each for each in found if each is not None]


def _relative(call: Call, folder: Path) -> SourceCall:
    end_line, end_column = call.end
    return SourceCall(
        file=os.path.relpath(call.file, folder),
        line=call.line,
        column=call.column,
        end_line=end_line,
        end_column=end_column,
    )
