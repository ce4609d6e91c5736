"""All ranks of a run must build the same job: they compare it while they build it, and all refuse a difference.

Facts are compared before the first collective that depends on them, which would block or train on other samples. Not
compared: the device of a rank, file paths, and what functions do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hasten.data.sources.job_data import Source
from hasten.errors import Misconfigured
from hasten.facts.formatting import shortened
from hasten.facts.job import Job
from hasten.facts.ranks import Ranks
from hasten.parallel.collectives import gather_over_ranks
from hasten.parallel.launch.failure_store import failure_store
from hasten.training.failures.as_failure import cause_of
from hasten.training.setup.apply_plan import Planned
from hasten.training.setup.configuration import FIELDS, plain

_SHOWN = 3  # fields that differ
_LONGEST, _LONGEST_OF_A_FIELD = 80, 300  # characters of a value, and of all values of a field
_FIX = (
    "build the same job from the same data in every process: hasten gives each its share of every batch; "
    "give random data a generator with a seed"
)


def check_same_job(facts: Mapping[str, Any], ranks: Ranks, device: torch.device) -> None:
    """Raises Misconfigured on all ranks where their facts differ, with the first of these and each rank's value.

    facts: name -> value, as JSON can hold it. device: the one that this rank trains on, through which ranks talk.
    """
    if not ranks.many:
        return
    text = json.dumps(facts)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if len({*gather_over_ranks([digest], ranks, device)}) > 1:
        everywhere = [json.loads(each) for each in gather_over_ranks([text], ranks, device)]
        what = f"the processes of this run have built different jobs: {_differences(everywhere)}"
        error = Misconfigured(what, fix=_FIX)
        if ranks.leads:
            failure_store(ranks).report(cause_of(error))
        gather_over_ranks([], ranks, device)  # the first rank reports for all: no other fails before it has
        raise error


def facts_of_fields(job: Job, planned: Sequence[Planned]) -> dict[str, Any]:
    """Of the job and the plan, before anything is built."""
    facts: dict[str, Any] = {name: plain(getattr(job, name)) for name in FIELDS}
    facts["metrics"] = [*job.metrics]
    facts["loss"] = getattr(job.loss, "__qualname__", type(job.loss).__qualname__)
    choices = {each.choice.technique: each.choice for each in planned}
    return facts | {
        f"plan.{name}": {"value": plain(choice.value), **{key: plain(each) for key, each in choice.options.items()}}
        for name, choice in choices.items()
    }


def facts_of_built(
    model: nn.Module, batch_size: int, sources: Sequence[Source | None], data: Mapping[str, str]
) -> dict[str, Any]:
    """data: the digest of each source, by its field."""
    facts: dict[str, Any] = {"batch_size": batch_size}
    for source in filter(None, sources):
        length = "no length" if source.count is None else f"{source.count} samples"
        facts[source.field] = f"{length} (values {data[source.field][:8]})"
    facts |= {f"parameter {name}": _kind(each) for name, each in model.named_parameters()}
    return facts | {f"buffer {name}": _kind(each) for name, each in model.named_buffers()}


def _kind(tensor: Tensor) -> str:
    frozen = "" if tensor.requires_grad or not isinstance(tensor, nn.Parameter) else ", frozen"
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}{frozen}"


def _differences(everywhere: Sequence[Mapping[str, Any]]) -> str:
    names = dict.fromkeys(name for facts in everywhere for name in facts)
    texts = list[str]()
    for name in names:
        first = dict[str, int]()  # value -> the first rank that has it
        for rank, facts in enumerate(everywhere):
            first.setdefault(str(facts.get(name, "absent")), rank)
        if len(first) > 1:
            shown = ", ".join(f"{shortened(value, _LONGEST)} on rank {rank}" for value, rank in first.items())
            texts.append(f"{name} is {shortened(shown, _LONGEST_OF_A_FIELD)}")
    more = [f"{len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return "; ".join([*texts[:_SHOWN], *more])
