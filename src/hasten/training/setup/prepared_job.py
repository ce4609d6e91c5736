"""From a job and a plan to a Setup: model and data built, every choice applied in the order of its stage.

Process-wide settings come first; the model stays on the host until every choice is applied.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hasten.data.cache.cached_source import Watcher, stored
from hasten.data.loading.batch_loader import TrainLoader
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.order.randomness import seed_everything, undisturbed
from hasten.data.sources.data_digest import data_digest
from hasten.data.sources.job_data import Source, source_of
from hasten.data.sources.model_in_data import way_to_model
from hasten.errors import JobError, Misconfigured, OutOfMemory, PlanError
from hasten.facts.job import Job, describe
from hasten.facts.machine import Machine, read_machine
from hasten.facts.plan import Fingerprint, Plan, ProvenOn, drift
from hasten.facts.ranks import launched
from hasten.facts.techniques.stage import Stage
from hasten.parallel.collectives import present_ranks
from hasten.parallel.shard.meta_init import built_by_first
from hasten.techniques import Setup
from hasten.techniques.setup import ProcessOptions
from hasten.training.run_folder.same_job import check_same_job, facts_of_built, facts_of_fields
from hasten.training.setup.apply_plan import Planned, apply_choices, in_order, with_claims
from hasten.training.state.declared_state import DeclaredState, declared_by

_HANDED_OUT: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedJob:
    """A Setup with the plan applied, the data it will read, and what identifies them.

    plan: as it was applied, so that every choice says what it claims to preserve.
    declared: the state that the job declares.
    data: digests of the job's data, of "train" and, where there is any, of "valid".
    """

    setup: Setup
    plan: Plan
    train: Source
    valid: Source | None
    batch_size: int
    declared: DeclaredState
    data: Mapping[str, str]
    fingerprint: Fingerprint
    proven_on: ProvenOn


def prepare_job(
    job: Job,
    plan: Plan,
    enter: Callable[[ProcessOptions], list[str]],
    *,
    name: str = "",
    watcher: Watcher | None = None,
) -> PreparedJob:
    """Build the job's model and data and apply the plan.

    enter: applies the plan's process-wide settings and returns what could not be set. It is called before the job's own
        code runs, because compute threads keep the mode in which they were started.
    watcher: receives progress while a cache is built, which can take minutes; None leaves it to the notices.

    Raises JobError for what is wrong in the job, PlanError for a choice that is unknown, invalid or in conflict.
    """
    _refuse_ranks_without_group()
    ordered, machine = in_order(plan), read_machine()
    setup = Setup(job=job, machine=machine, device=device_of(job, machine), ranks=present_ranks())
    setup.step.clip_norm, setup.step.clip_value = job.clip_norm, job.clip_value
    setup.step.read_every = job.log_every
    if setup.ranks.many:
        check_same_job(facts_of_fields(job, ordered), setup.ranks, setup.device)
    claims = apply_choices(setup, ordered, (Stage.PROCESS,))
    setup.notices += enter(setup.process)
    seed_everything(job.seed)
    setup.model = _made_model(job, ordered, setup.device)
    train, valid = _sources(job, setup.model)
    setup.train = train
    data = {each.field: data_digest(each) for each in (train, valid) if each is not None}
    setup.batch_size = batch_size = _batch_size(train)
    if setup.ranks.many:
        check_same_job(facts_of_built(setup.model, batch_size, (train, valid), data), setup.ranks, setup.device)
    setup.draw_sample = partial(_first_batch, planned=ordered, train=train)
    setup.loader = replace(train.options) if train.options is not None else LoaderOptions()
    fingerprint = fingerprint_of(name, setup.model, batch_size, train.count)
    proven_on = proven_here(machine)
    _say_drift(setup, plan, fingerprint, proven_on)
    claims |= apply_choices(setup, ordered, tuple(stage for stage in Stage if stage is not Stage.PROCESS))
    setup.sampled = None  # what needs a batch later reads it again
    watcher = watcher or Watcher(setup.notices.append, lambda done, samples: None)
    return PreparedJob(
        setup=setup,
        plan=with_claims(plan, claims),
        train=_stored(train, setup, watcher),
        valid=None if valid is None else _stored_if_it_fits(valid, setup, watcher),
        batch_size=setup.batch_size,
        declared=declared_by(job),
        data=data,
        fingerprint=fingerprint,
        proven_on=proven_on,
    )


def _sources(job: Job, model: nn.Module) -> tuple[Source, Source | None]:
    """train and valid, with whether they read the model. A function that returns them draws the same numbers on every
    rank and with any Job.seed, as the job's file does."""
    with undisturbed():
        seed_everything(0)
        train = source_of(job.train, field="train", batch_size=job.batch_size, collate=job.collate)
        valid = None if job.valid is None else source_of(job.valid, field="valid", collate=job.collate)
        sources = [None if each is None else _with_batches(each, job.seed) for each in (train, valid)]
    train, valid = (None if each is None else _with_model(each, model) for each in sources)
    assert train is not None
    return train, valid


def _with_batches(source: Source, seed: int) -> Source:
    """With the samples of a batch sampler's first epoch as its length, and its largest batch as the batch size."""
    if source.batches is None:
        return source
    drawn = source.batches.drawn(seed, 0)
    return replace(source, count=len(drawn.indices), batch_size=int(drawn.sizes.max()))


def _with_model(source: Source, model: nn.Module) -> Source:
    return source if source.gathers else replace(source, reads_model=way_to_model(source, model))


def _stored(source: Source, setup: Setup, watcher: Watcher) -> Source:
    """In a cache or in memory, where the plan says so."""
    if not (setup.loader.cache or setup.loader.in_memory):
        return source
    return stored(source, setup.loader, setup.device, setup.machine, watcher)


def _stored_if_it_fits(valid: Source, setup: Setup, watcher: Watcher) -> Source:
    """The evaluation's data as the training's; where that does not fit, unchanged, with a notice."""
    try:
        return _stored(valid, setup, watcher)
    except OutOfMemory as error:
        setup.notices.append(f"valid is not held in memory: {error.what}")
        return valid


def _refuse_ranks_without_group() -> None:
    """Processes that a launcher started as one run must not each train the whole of it."""
    started = 1 if present_ranks().many else launched().all.size
    if started > 1:
        raise Misconfigured(
            f"this is one of {started} processes, but no process group is initialized",
            where="WORLD_SIZE",
            fix="call torch.distributed.init_process_group first; hasten.train does this itself",
        )


def device_of(job: Job, machine: Machine) -> torch.device:
    """Where the job runs. Raises JobError when torch does not know its device, or it is not here."""
    wanted = job.device or machine.device
    try:
        device = torch.device(wanted)
    except (RuntimeError, TypeError):
        raise JobError("device", f"is {describe(wanted)}, which torch does not know", 'write "cpu" or "cuda"') from None
    if device.type == "cuda" and device.index is None and launched().all.many:
        device = torch.device("cuda", launched().here.rank % max(machine.accelerators, 1))
    if device.type == "cuda" and (device.index or 0) >= max(machine.accelerators, 0):
        raise JobError(
            "device", f"is {describe(wanted)}, but torch finds {machine.accelerators} such devices", 'write "cpu"'
        )
    if device.type not in ("cpu", "cuda"):
        try:
            torch.zeros((), device=device).item()
        except (RuntimeError, NotImplementedError, AssertionError):
            what = f"is {describe(wanted)}, on which torch cannot compute here"
            raise JobError("device", what, 'write "cpu" or "cuda"') from None
    return device


def seed_of_rank(seed: int, rank: int) -> int:
    """Each rank draws other dropout masks."""
    return seed if rank == 0 else int(np.random.SeedSequence([seed, rank]).generate_state(1, np.uint64)[0] >> 1)


def _made_model(job: Job, planned: Sequence[Planned], device: torch.device) -> nn.Module:
    chosen = {each.choice.technique: each for each in planned}
    once = "shard" in chosen and bool(chosen["shard"].choice.options.get("meta")) and present_ranks().many
    measured = chosen.get("activation_checkpointing")
    if once and measured is not None and measured.choice.value == "measured":
        what = "with meta, processes lack the weights that are needed to measure blocks"
        raise PlanError(what, where=measured.place, fix='write "blocks", "alternate" or a list of modules')
    model = check_made(built_by_first(job.model, present_ranks(), device) if once else job.model())
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise JobError("model", "has no parameter that requires a gradient", "give a model that can be trained")
    if (
        device.type == "cpu"
        and present_ranks().many
        and any(isinstance(each, nn.SyncBatchNorm) for each in model.modules())
    ):
        fix = "use BatchNorm1d, 2d or 3d, or train in one process"
        raise JobError(
            "model", "has SyncBatchNorm, which torch computes over several processes on accelerators alone", fix
        )
    if model in _HANDED_OUT:
        # An earlier run has trained it, and its plan may have changed it.
        raise JobError("model", "returned the same module as before", "build a new one in it: model=lambda: MyModel()")
    _HANDED_OUT.add(model)
    return model


def check_made(model: Any) -> nn.Module:
    """The same module. Raises JobError for anything else, and for a lazy module without its sizes."""
    if not isinstance(model, nn.Module):
        raise JobError("model", f"returned {describe(model)}", "return a torch.nn.Module")
    named = (*model.named_parameters(), *model.named_buffers())
    lazy = next((name for name, each in named if is_lazy(each)), None)
    if lazy is not None:
        what = f"returned a model whose {lazy} is not initialized: its size is known only after a first forward"
        fix = "run one forward in Job.model before it returns the model, such as model(torch.zeros(1, 8))"
        raise JobError("model", what, fix)
    return model


def _batch_size(train: Source) -> int:
    if train.batch_size is None:
        raise JobError("batch_size", "is not given", "set the samples per optimizer step: batch_size=128")
    return train.batch_size


def _first_batch(setup: Setup, planned: Sequence[Planned], train: Source) -> Any:
    job, batch_size = setup.job, setup.batch_size or _batch_size(train)
    chosen = [item.choice for item in planned if item.technique.name == "loader_workers"]  # it may be applied later
    workers = chosen[-1].value if chosen else setup.loader.workers
    kind = chosen[-1].options.get("kind", "processes") if chosen else setup.loader.worker_kind
    loader = TrainLoader(
        train,
        batch_size=batch_size,
        microbatch_size=None,
        options=LoaderOptions(workers=1 if workers and kind == "processes" else 0),
        seed=job.seed,
        shuffle=job.shuffle,
        drop_last=job.drop_last,
        replace_bad=job.on_bad_sample == "replace",
    )
    with closing(loader):
        return loader.first_batch()


def fingerprint_of(name: str, model: nn.Module, batch_size: int, samples: int | None) -> Fingerprint:
    """samples: of the training data; None where it has no length."""
    digest = hashlib.sha256()
    for key, value in model.state_dict(keep_vars=True).items():
        kind = f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
        digest.update(f"{key} {kind}\n".encode())
    return Fingerprint(
        source=name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        shapes=digest.hexdigest()[:16],
        batch_size=batch_size,
        samples=samples,
    )


def proven_here(machine: Machine) -> ProvenOn:
    return ProvenOn(
        cores=machine.cores, memory_bytes=machine.memory_bytes, accelerator=machine.accelerator, torch=machine.torch
    )


def _say_drift(setup: Setup, plan: Plan, fingerprint: Fingerprint, here: ProvenOn) -> None:
    if plan.job is None and plan.machine is None:  # it was never proven
        return
    if found := drift(plan, fingerprint, here):
        setup.notices.append(f"the plan was proven elsewhere ({'; '.join(found)}); its gains may not hold here")
