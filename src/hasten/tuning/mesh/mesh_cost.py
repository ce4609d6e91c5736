"""What a mesh of devices costs a job, on paper: memory, communication and the pipeline's bubble, as pure arithmetic.

It follows how hasten does each. Replicas reduce gradients once a step, from buckets of their size. Sharded ranks gather
weights and scatter gradients after every microbatch; what is around the repeated blocks stays gathered for a whole
pass. Tensor ranks sum activations once in each direction for each pair of layers. Pipeline stages each have a share of
the blocks and everything around them, and run 1F1B, so the first one keeps as many microbatches as there are stages.

Sources: ZeRO, arXiv:1910.02054, section 7; Megatron-LM, arXiv:1909.08053 and arXiv:2104.04473, section 2.2; ring
collectives, Patarasuk and Yuan 2009.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from hasten.facts.mesh import Amount, Cluster, Memory, Mesh, MeshCost, ModelNeeds, Part, Sharding


def cost_of(mesh: Mesh, needs: ModelNeeds, cluster: Cluster, microbatch_size: int) -> MeshCost:
    share = needs.batch_size // mesh.data
    microbatches = -(-share // microbatch_size)
    memory = memory_of(mesh, needs, microbatch_size, microbatches)
    sent = sent_of(mesh, needs, share, microbatches)
    work = needs.flops_per_sample * needs.batch_size / mesh.devices
    return MeshCost(
        mesh=mesh,
        microbatch_size=microbatch_size,
        microbatches=microbatches,
        memory=memory,
        sent=sent,
        communication_seconds=sum(sent.values()) / cluster.bytes_per_second,
        bubble=(mesh.pipeline - 1) / (microbatches + mesh.pipeline - 1),
        compute_seconds=work / cluster.flops_per_second,
        fits=memory.total <= cluster.memory_bytes * (1 - cluster.margin),
    )


def memory_of(mesh: Mesh, needs: ModelNeeds, microbatch_size: int, microbatches: int) -> Memory:
    """Of the stage with the most."""
    in_flight = min(mesh.pipeline, microbatches)
    each = [_of_stage(mesh, needs, stage, microbatch_size, in_flight) for stage in stages_of(needs, mesh.pipeline)]
    return max(each, key=lambda memory: memory.total)


def stages_of(needs: ModelNeeds, pipeline: int) -> Iterator[tuple[Part, ...]]:
    """The blocks of each stage, in order; the first stages have one more where they cannot be equal."""
    fewest, more = divmod(len(needs.blocks), pipeline)
    blocks = iter(needs.blocks)
    for stage in range(pipeline):
        yield tuple(islice(blocks, fewest + (stage < more)))


def _of_stage(mesh: Mesh, needs: ModelNeeds, blocks: tuple[Part, ...], samples: int, in_flight: int) -> Memory:
    tensor, parts = mesh.tensor, (needs.around, *blocks)
    weights, gradients, state = _held(parts, tensor)
    activations = sum(_kept(each, samples, tensor) for each in blocks) * in_flight
    activations += _kept(needs.around, samples, tensor)
    activations += max(each.recomputed.over(tensor) * samples for each in parts)
    if mesh.shard is Sharding.NONE:
        in_buckets = mesh.data > 1 and mesh.pipeline == 1  # replicas of stages sum gradients in place
        gathered, buckets, shards = 0.0, gradients if in_buckets else 0.0, 1
    else:
        shards, buckets = mesh.data, 0.0
        gathered = _gathered(parts, tensor, everything=mesh.shard is Sharding.ZERO2)
    return Memory(
        weights=weights / shards + needs.buffer_bytes,
        gathered=gathered,
        gradients=gradients / shards,
        buckets=buckets,
        state=state / shards,
        activations=activations,
    )


def _held(parts: Iterable[Part], tensor: int) -> tuple[float, float, float]:
    listed = tuple(parts)
    return (
        _sum(each.weights for each in listed).over(tensor),
        _sum(each.gradients for each in listed).over(tensor),
        _sum(each.state for each in listed).over(tensor),
    )


def _kept(part: Part, samples: int, tensor: int) -> float:
    return part.fixed.over(tensor) + samples * part.per_sample.over(tensor)


def _gathered(parts: tuple[Part, ...], tensor: int, *, everything: bool) -> float:
    """At most: the weights of the layer that computes and of the next, its gradients, and those of the one before. What
    is in no such layer stays gathered for the whole pass, and so do its gradients."""
    root = _sum(each.root for each in parts).over(tensor)
    layer = max(each.unit.over(tensor) for each in parts)
    weights = _sum(each.weights for each in parts).over(tensor) if everything else root + 2 * layer
    return weights + root + 2 * layer


def sent_of(mesh: Mesh, needs: ModelNeeds, samples: int, microbatches: int) -> dict[str, float]:
    """Bytes that one device sends in a step, by what they are. samples: of one data rank in a step."""
    parts = max(
        ((needs.around, *stage) for stage in stages_of(needs, mesh.pipeline)),
        key=lambda stage: _sum(each.weights for each in stage).over(mesh.tensor),
    )
    weights, gradients, _ = _held(parts, mesh.tensor)
    root = _sum(each.root for each in parts).over(mesh.tensor)
    sent = dict[str, float]()
    others = (mesh.data - 1) / mesh.data
    if mesh.data > 1 and mesh.shard is Sharding.NONE:
        sent["summed gradients"] = 2 * others * gradients
    elif mesh.data > 1:
        twice = weights - root if mesh.shard is Sharding.ZERO3 else 0.0  # again for the backward pass
        sent["gathered weights"] = others * (weights + twice) * microbatches
        sent["scattered gradients"] = others * gradients * microbatches
    if mesh.tensor > 1:
        summed = sum(each.summed.total for each in parts)
        sent["summed activations"] = 2 * (mesh.tensor - 1) / mesh.tensor * summed * samples
    if mesh.pipeline > 1:
        neighbours = min(mesh.pipeline - 1, 2)
        sent["passed activations"] = neighbours * needs.border_bytes * samples
        around = needs.around.gradients.over(mesh.tensor)
        sent["summed gradients around the blocks"] = 2 * (mesh.pipeline - 1) / mesh.pipeline * around
    return sent


def _sum(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, Amount())
