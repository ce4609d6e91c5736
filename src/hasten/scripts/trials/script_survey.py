"""What every technique says of a running script: the Setup that its objects make, and what its source allows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, DistributedSampler

from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.job_data import Source, source_of
from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.formatting import printable
from hasten.facts.job import Job
from hasten.facts.machine import read_machine
from hasten.facts.scripts.script_places import ScriptPlaces
from hasten.facts.scripts.seen import Seen
from hasten.scripts.edits.places import edited_sources
from hasten.scripts.edits.technique_edits import EDITS
from hasten.scripts.proving.gradient_steps import PROCESSES_OF_PROOF, STEPS_OF_PROOF
from hasten.scripts.proving.recipe import STEPS_OF_AN_EPOCH
from hasten.scripts.techniques import OF_SCRIPTS, RunningLoader
from hasten.techniques import ALL, No, Setup
from hasten.training.setup.prepared_job import fingerprint_of, proven_here
from hasten.tuning.trials.search_key import digest_of_sources
from hasten.tuning.trials.survey import as_table


def setup_of(module: nn.Module, optimizer: Optimizer, loader: DataLoader[Any] | None, seen: Seen, sample: Any) -> Setup:
    job = Job(
        model=lambda: module,
        loss=lambda model, batch: torch.zeros(()),
        optimizer=lambda parameters: optimizer,
        train=loader if loader is not None else [sample],
        epochs=seen.length.epochs or 1,
    )
    machine = read_machine()
    setup = Setup(job=job, machine=machine, device=torch.device(seen.model.device), model=module)
    if loader is not None:
        setup.train = replace(_source(loader), columns=None, rows=None)  # torch reads sample by sample
        setup.loader = setup.train.options or LoaderOptions()
        setup.batch_size = loader.batch_size
    setup.draw_sample = lambda setup: sample
    return setup


def _source(loader: DataLoader[Any]) -> Source:
    """Of a loader whose data set gives whole batches, or that reads a rank's share of it, for which Source has no form:
    its data set and its options."""
    shares = isinstance(getattr(loader.batch_sampler, "sampler", None), DistributedSampler)
    if loader.batch_sampler is not None and not shares:
        return source_of(loader, field="train")
    options = LoaderOptions(
        workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        pin_memory=loader.pin_memory,
    )
    return replace(source_of(loader.dataset, field="train"), options=options)


def _as_claimed(choice: Choice) -> Choice:
    """Workers of torch's loader draw the random numbers of transforms themselves, hasten's do not."""
    return replace(choice, preserves=Preserves.STATISTICS) if choice.technique in _BY_WORKERS else choice


_BY_WORKERS = frozenset({"loader_workers", "persistent_workers", "prefetch"})
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


def _why_no_workers(technique: str, loader: DataLoader[Any] | None) -> str:
    """Why worker processes would read nothing, or would train on other data, which a proof of a few steps does not see;
    "" where not."""
    if technique not in _BY_WORKERS:
        return ""
    if loader is None:
        return "the steps read no DataLoader"
    data = loader.dataset
    if own := [name for name, each in getattr(data, "__dict__", {}).items() if isinstance(each, _GENERATORS)]:
        return f"the data set draws from a generator of its own, {own[0]}, whose numbers every worker would repeat"
    if technique == "persistent_workers" and hasattr(data, "set_epoch"):
        return "the data set has set_epoch(), which workers that stay do not get to know"
    return ""


def survey_of(
    setup: Setup,
    seen: Seen,
    running: RunningLoader,
    places: ScriptPlaces,
    script: Path,
    options: Sequence[str],
) -> dict[str, Any]:
    """As tuning.trials.survey.survey: a choice whose edit the source does not allow is refused with that reason. The
    trials of other sources, of other options of the script, or of another number of ranks are not continued."""
    proposed, refused = list[dict[str, Any]](), dict[str, str]()
    for technique in OF_SCRIPTS:
        choice = Choice(technique=technique.name, value=True, preserves=technique.preserves)
        reason = _refused(choice, places, script) or technique.why_not(running)
        if reason:
            refused[technique.name] = printable(reason)
        else:
            proposed.append(as_table(choice))
    for technique in ALL:
        if technique.name not in EDITS:  # it needs hasten's own training loop
            continue
        reason = _why_no_workers(technique.name, running.loader)
        answer = No(reason) if reason else technique.applies(setup)
        if isinstance(answer, No):
            refused[technique.name] = printable(answer.reason)
            continue
        for choice in technique.candidates(setup):
            if reason := _refused(choice, places, script):
                refused[technique.name] = printable(reason)
            else:
                proposed.append(as_table(_as_claimed(choice)))
    facts = [*map(str, sorted(places.sources.items())), *options, f"{setup.machine.ranks} ranks"]
    samples = None if setup.train is None else setup.train.count
    fingerprint = fingerprint_of(script.name, setup.model, setup.batch_size or 1, samples)
    return {
        "proposed": proposed,
        "refused": refused,
        "treats": {technique.name: technique.treats.name for technique in (*ALL, *OF_SCRIPTS)},
        "seed": 0,
        "total_steps": seen.length.steps,
        "total_epochs": seen.length.epochs,
        "ends_with_turn": seen.loader is not None,
        "interrupted": seen.length.interrupted,
        "recipe_steps": 2 * STEPS_OF_AN_EPOCH,
        "gradient_steps": STEPS_OF_PROOF,
        "gradient_processes": PROCESSES_OF_PROOF,
        "accepted_steps": STEPS_OF_AN_EPOCH,  # whose losses are compared
        "evaluations": 0,
        "stops_early": False,
        "device": seen.model.device,
        "machine": setup.machine.summary,
        "fingerprint": asdict(fingerprint),
        "proven_on": asdict(proven_here(setup.machine)),
        "sources": f"{digest_of_sources()} {_digest_of(facts)}",
    }


def _digest_of(words: Sequence[str]) -> str:
    return sha256("\0".join(words).encode()).hexdigest()[:16]


def _refused(choice: Choice, places: ScriptPlaces, script: Path) -> str:
    """Why its edit cannot be made; "" where it can."""
    try:
        edited_sources([choice], places, script.parent)
    except PlanError as error:
        return error.what
    return ""
