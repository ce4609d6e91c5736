"""Replicas begin with the same weights and make the same updates, so what they hold is the same; or it is refused.

A loss may move parameters by itself, and an optimizer may draw noise. What follows from the weights alone, such as a
teacher's average, is the same on each rank. What is drawn, or taken from a rank's own samples, such as a row that is
begun anew, is not: from there on each replica trains another model, and one of them is saved.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.errors import JobError
from hasten.facts.ranks import Ranks
from hasten.parallel.replicate.fingerprint import fingerprint
from hasten.parallel.replicate.replicated import gather_over_ranks

# Of a parameter's size. Replicas make the same updates; processors that round otherwise drift apart by far less.
_ROUNDING = 1e-4
_SHOWN = 3


def check_same(parameters: Iterable[tuple[str, Tensor]], ranks: Ranks, everyone: Ranks, device: torch.device) -> None:
    """Raises JobError, on everyone, where some of these ranks hold other values. parameters: by name. device: of the
    run, through which ranks talk."""
    if names := _names_apart(parameters, ranks, everyone, device):
        raise JobError(
            "",
            f"its loss or its optimizer has moved {names} otherwise on each process, and so they hold other weights",
            "let the loss move them by what is the same on all, or keep in buffers what it draws or takes from its "
            "samples; noise of an optimizer needs a generator of its own, under one seed; max_norm of an Embedding "
            "moves weights as well",
        )


def check_made_alike(
    parameters: Iterable[tuple[str, Tensor]], ranks: Ranks, everyone: Ranks, device: torch.device
) -> None:
    """As check_same, of what the loss holds, before the first step."""
    if names := _names_apart(parameters, ranks, everyone, device):
        what = f"holds {names}, which each process has made otherwise"
        fix = "call torch.manual_seed(…) before the loss is made; what may differ can be a plain tensor"
        raise JobError("loss", what, fix)


def _names_apart(parameters: Iterable[tuple[str, Tensor]], ranks: Ranks, everyone: Ranks, device: torch.device) -> str:
    """Those that are known to anyone, in short; empty where all hold the same."""
    if not ranks.many:
        return ""
    named = [(name, each) for name, each in parameters if not each.is_meta and each.layout == torch.strided]
    told = gather_over_ranks(_apart(named, ranks, device), everyone, device)
    return ", ".join([*dict.fromkeys(told)][:_SHOWN])


def _apart(named: list[tuple[str, Tensor]], ranks: Ranks, device: torch.device) -> list[str]:
    """Names of those that are not the first rank's, or that one of the ranks does not have."""
    listed = zlib.crc32("\n".join(name for name, _ in named).encode())
    if len({*gather_over_ranks([listed], ranks, device)}) > 1:
        count = Counter(gather_over_ranks([name for name, _ in named], ranks, device))
        return [name for name, times in count.items() if times < ranks.size]
    if not named:
        return []
    own = torch.stack([fingerprint(each).to(device) for _, each in named])
    leaders = own.clone()
    dist.broadcast(leaders, group=ranks.group, group_src=0)
    far = (own - leaders).abs().amax(1) > _ROUNDING * leaders[:, 1]
    apart = far | (own[:, 2] != leaders[:, 2]) | (own.isfinite() != leaders.isfinite()).any(1)
    return [name for (name, _), differs in zip(named, apart.tolist(), strict=True) if differs]
