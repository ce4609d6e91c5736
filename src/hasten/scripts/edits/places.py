"""From what was observed to the places that a plan keeps, and from those to the edited sources."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hasten.doctor.reading.source_code import Code
from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.facts.scripts.script_places import PassPlace, ScriptPlaces, SourceCall, TrainerPlace, WrapPlace
from hasten.facts.scripts.seen import Call, Seen, Stack
from hasten.regular_files import read_regular
from hasten.scripts.edits.edit import file_of
from hasten.scripts.edits.edited_source import edited_source
from hasten.scripts.edits.script_options import given_names, with_own_settings
from hasten.scripts.edits.source_text import text_of
from hasten.scripts.edits.technique_edits import edits_of
from hasten.scripts.running.notebook import is_notebook, script_of, with_script
from hasten.scripts.running.program import Program
from hasten.scripts.techniques import cache_decoded_images, doctor_fixes, evaluation_without_gradients

_NO_WINDOW = "forward and backward are not one after the other in a function, so autocast cannot end between them"
_WRAPPED = (
    "the model has no name where DistributedDataParallel wraps it; in another memory format from there on, its first "
    "gradients would be wrong"
)


def places_of(seen: Seen, program: Program) -> ScriptPlaces:
    script, missing = program.path, dict[str, str]()

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
    wrapping = first("wrapped", "DistributedDataParallel", seen.model.wrapping) if seen.model.unwrapped else None
    if cannot_convert := seen.model.is_wrapped and wrapping is None:
        missing["images"] = _WRAPPED
    trainer = seen.trainer
    call = None if trainer is None else first("trainer", trainer.kind, trainer.made, trainer.made_by)
    if not seen.windows:
        missing["passes"] = missing.get("trainer") or _NO_WINDOW
    places = ScriptPlaces(
        script=script.name,
        sources={},
        device=seen.model.device,
        optimizers=tuple(own) if len(own) == len(optimizers) else (),
        loader=loader,
        model=seen.model.names[0] if seen.model.names else None,
        named=first("named", "the optimizer", seen.model.named) if seen.model.named else None,
        wrapped=None if wrapping is None else WrapPlace(name=seen.model.unwrapped[0], call=wrapping),
        forward=first("forward", "the call of the model", seen.model.called),
        images=() if cannot_convert else seen.model.images,
        passes=tuple(
            PassPlace(forward=_relative(each.forward, script.parent), backward=_relative(each.backward, script.parent))
            for each in seen.windows
        ),
        autocast=seen.autocast,
        trainer=None
        if trainer is None or call is None
        else TrainerPlace(kind=trainer.kind, call=call, precision=trainer.precision, optimizer=seen.optimizer.kind),
        given=given_names(program.options),
        missing=missing,
    )
    files = {script.name, *(each.file for each in _calls(places))}
    places = _with_places_in_sources(places, seen, sorted(files), script.parent)
    found = (each for calls in places.findings.values() for each in calls)
    files |= {each.file for each in (*places.decodings, *places.evaluations, *found)}
    return replace(places, sources={file: _digest(script.parent / file) for file in sorted(files)})


def _with_places_in_sources(places: ScriptPlaces, seen: Seen, files: Sequence[str], folder: Path) -> ScriptPlaces:
    """With those that are found by reading the sources."""
    of_data = [os.path.relpath(seen.loader.dataset_file, folder)] if seen.loader and seen.loader.dataset_file else []
    decodes, evaluates, finds = list[SourceCall](), list[SourceCall](), dict[str, tuple[SourceCall, ...]]()
    for file in dict.fromkeys([*files, *of_data]):
        try:
            text = _text(folder / file)
            code = Code(text)
        except (PlanError, SyntaxError, ValueError, RecursionError, MemoryError):  # whatever Python itself can read
            continue
        evaluates += evaluation_without_gradients.evaluations(code, file)
        for name, calls in doctor_fixes.findings(text, file).items():
            finds[name] = (*finds.get(name, ()), *calls)
        if file in of_data:
            decodes += cache_decoded_images.decodings(code, file)
    return replace(places, decodings=tuple(decodes), evaluations=tuple(evaluates), findings=finds)


def edited_sources(choices: Sequence[Choice], places: ScriptPlaces, folder: Path) -> dict[str, str]:
    """File, relative to the script's folder -> its source under a plan. Raises PlanError where a source does not allow
    it, or has changed since it was observed."""

    def source(file: str) -> str:
        if _digest(folder / file) != places.sources.get(file):
            what = "has changed since the plan was made for it"
            raise PlanError(what, where=str(folder / file), fix=f"run hasten tune {places.script}")
        return _text(folder / file)

    edits, found = edits_of(choices, places, source), dict[str, str]()
    for file in dict.fromkeys(map(file_of, edits)):
        try:
            own = with_own_settings(source(file), [each for each in edits if file_of(each) == file], places.given)
            text = edited_source(source(file), own)
            found[file] = with_script(text_of(read_regular(folder / file)), text, file) if is_notebook(file) else text
        except PlanError as error:
            raise PlanError(error.what, where=error.where or str(folder / file), fix=error.fix) from error
    return found


def _text(path: Path) -> str:
    """Of a notebook, as a script. Raises PlanError."""
    try:
        text = text_of(read_regular(path))
    except PlanError as error:
        raise PlanError(error.what, where=str(path), fix=error.fix) from error
    return script_of(text, str(path)) if is_notebook(path) else text


def _digest(path: Path) -> str:
    return hashlib.sha256(read_regular(path)).hexdigest()


def _calls(places: ScriptPlaces) -> list[SourceCall]:
    of_passes = (call for each in places.passes for call in (each.forward, each.backward))
    wrapped = None if places.wrapped is None else places.wrapped.call
    found = (places.loader, *places.optimizers, places.named, wrapped, places.forward, *of_passes)
    of_library = () if places.trainer is None else (places.trainer.call,)
    return [each for each in (*found, *of_library) if each is not None]


def _relative(call: Call, folder: Path) -> SourceCall:
    end_line, end_column = call.end
    return SourceCall(
        file=os.path.relpath(call.file, folder),
        line=call.line,
        column=call.column,
        end_line=end_line,
        end_column=end_column,
    )
