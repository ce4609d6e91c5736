"""How a cluster could hold a job, for people and for machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from hasten.facts.formatting import byte_size
from hasten.facts.mesh import Amount, Mesh, MeshCost, Meshes, ModelNeeds, Sharding
from hasten.report.display import count, duration, percent, scaled, table
from hasten.report.sentence import Sentence

SHOWN = 10  # meshes, where not all are asked for
_HELD = {Sharding.NONE: "whole", Sharding.ZERO2: "zero2", Sharding.ZERO3: "zero3"}


def job_lines(found: Meshes) -> list[tuple[str, str]]:
    """Label and text of each line: what the job needs and how that is known, and what the cluster has."""
    needs, cluster = found.needs, found.cluster
    fitting = sum(each.fits for each in found.legal)
    room = f"{byte_size(round(cluster.memory_bytes))}, of which {percent(cluster.margin)} must stay free"
    reached = scaled(cluster.flops_per_second, "FLOP/s")
    speed = f"sends {byte_size(round(cluster.bytes_per_second))}/s, reaches {reached}"
    return [
        ("counted", f"{count(needs.parameters)} parameters: {_held(needs)}"),
        ("measured", _activations(needs)),
        ("method", needs.how),
        ("batch", f"{needs.batch_size:,} samples a step, {scaled(needs.flops_per_sample, 'FLOP')} each"),
        ("a device", f"{room}; {speed}"),
        ("meshes", f"{len(found.legal):,} are legal, {len(found.illegal):,} are not; {fitting:,} fit"),
    ]


def mesh_rows(found: Meshes, *, everything: bool) -> list[str]:
    """The table of legal meshes, best first."""
    if not found.legal:
        return ["no mesh is legal"]
    shown = found.legal if everything else found.legal[:SHOWN]
    header = ["data×tensor×pipe", "holds", "passes", "memory", "sends", "takes", "bubble", "a step"]
    lines = table(header, [_row(each) for each in shown])
    left = len(found.legal) - len(shown)
    return [*lines, *([f"and {left:,} more (--all)"] if left else [])]


def illegal_rows(found: Meshes) -> list[str]:
    """Meshes that only differ in what is held are one line, unless that is what makes them illegal."""
    legal = {_of(each.mesh) for each in found.legal}
    reasons = dict[str, str]()
    for each in found.illegal:
        sizes = _of(each.mesh)
        reasons.setdefault(f"{sizes} {_HELD[each.mesh.shard]}" if sizes in legal else sizes, each.reason)
    return table(["not legal", "because"], [*map(list, reasons.items())], words=(1,))


def cost_lines(found: Meshes) -> list[tuple[str, str]]:
    """What the numbers mean, and what makes up the best mesh."""
    lines = [
        ("passes", "times samples: of a device in a step, one after the other"),
        ("takes", "sending, at full bandwidth and hidden behind nothing: an upper bound"),
        ("a step", "arithmetic and sending, one after the other, and the bubble"),
        ("excluded", "temporaries of the backward pass, buffers of the communication library, rounding up"),
    ]
    best = found.best
    if best is None:
        return lines if found.legal else []
    if best is not found.legal[0]:
        first = found.legal[0]
        text = f"{first.mesh}, if microbatches of {first.microbatch_size:,} cost no more than others: measure it"
        lines.append(("first", text))
    return lines


def sentence_of(found: Meshes) -> Sentence:
    best = found.best
    if best is None:
        why = (
            "none of those that are legal fits into the memory" if found.legal else "every mesh has a reason against it"
        )
        return Sentence(headline="No mesh fits", small_print=why)
    costs = f"{byte_size(round(best.memory.total))} and {duration(best.step_seconds)} a step on each device"
    sent = f"sends {_listed(best.sent) or 'nothing'}"
    memory = f"an estimate: {_listed(asdict(best.memory))}; {sent}"
    return Sentence(headline=f"Best mesh: {best.mesh}, {costs}", small_print=memory)


def answer_of(found: Meshes) -> dict[str, Any]:
    """Everything, with what is derived of each mesh beside its parts."""
    answer = asdict(found)
    for given, each in zip(answer["legal"], found.legal, strict=True):
        given |= {"memory_bytes": each.memory.total, "sent_bytes": each.sent_bytes, "step_seconds": each.step_seconds}
    answer["estimate"] = True
    return answer


def _row(cost: MeshCost) -> list[str]:
    mesh = cost.mesh
    return [
        _of(mesh),
        _HELD[mesh.shard],
        f"{cost.microbatches:,} × {cost.microbatch_size:,}",
        byte_size(round(cost.memory.total)),
        byte_size(round(cost.sent_bytes)),
        duration(cost.communication_seconds),
        percent(cost.bubble),
        duration(cost.step_seconds) if cost.fits else "no room",
    ]


def _of(mesh: Mesh) -> str:
    return f"{mesh.data}×{mesh.tensor}×{mesh.pipeline}"


def _held(needs: ModelNeeds) -> str:
    parts = (needs.around, *needs.blocks)
    held = {kind: _total(getattr(each, kind) for each in parts) for kind in ("weights", "gradients", "state")}
    return _listed(held).replace("state", "optimizer state")


def _activations(needs: ModelNeeds) -> str:
    each = _total(part.per_sample for part in (needs.around, *needs.blocks))
    inside = _total(part.per_sample for part in needs.blocks)
    blocks = f"{percent(inside / each) if each else '0 %'} of it in {len(needs.blocks):,} repeated blocks"
    return f"{byte_size(round(each))} of activations a sample, {blocks}"


def _total(amounts: Iterable[Amount]) -> float:
    return sum(each.total for each in amounts)


def _listed(sizes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {byte_size(round(size))}" for name, size in sizes.items() if size)
