"""Which meshes of a number of devices a job can use, why others are illegal, and which is likely the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hasten.errors import Misconfigured
from hasten.facts.choice import Choice
from hasten.facts.mesh import Cluster, Illegal, Mesh, MeshCost, Meshes, ModelNeeds, Sharding
from hasten.techniques.combinations import conflicts
from hasten.tuning.mesh.mesh_cost import cost_of


def meshes(devices: int) -> Iterator[Mesh]:
    """Every way to write the number of devices as data × tensor × pipeline, with each way to shard the model."""
    for tensor in _divisors(devices):
        for pipeline in _divisors(devices // tensor):
            data = devices // tensor // pipeline
            for shard in Sharding if data > 1 else [Sharding.NONE]:
                yield Mesh(data=data, tensor=tensor, pipeline=pipeline, shard=shard)


def why_illegal(mesh: Mesh, needs: ModelNeeds, per_machine: int) -> str | None:
    """The arithmetic that a mesh fails; None where it is legal."""
    if needs.short_weights and mesh.devices > 1:
        return "16-bit weights are not trained over several processes: use float32 with bf16 autocast"
    if needs.batch_size % mesh.data:
        return f"a batch of {needs.batch_size} cannot be divided over data: {_rest(needs.batch_size, mesh.data)}"
    if mesh.pipeline > max(len(needs.blocks), 1):
        return f"{mesh.pipeline} stages of a pipeline need as many blocks, and the model repeats {len(needs.blocks)}"
    if mesh.tensor == 1:
        return None
    if not needs.divisible:
        return "the model has no layer that is known to be divisible (hasten explain tensor)"
    if mesh.tensor > per_machine:
        return f"{mesh.tensor} devices communicate in every layer, but a machine has {per_machine}"
    if mesh.devices > per_machine and per_machine % mesh.tensor:
        return f"groups that communicate in every layer would span machines: {_rest(per_machine, mesh.tensor)}"
    for what, number in needs.divisible:
        if number % mesh.tensor:
            return f"{what} = {number} cannot be divided over tensor: {_rest(number, mesh.tensor)}"
    return None


def best_cost(mesh: Mesh, needs: ModelNeeds, cluster: Cluster, microbatch_size: int | None = None) -> MeshCost:
    """With the fastest microbatch that fits, of those that divide a rank's samples; where none fits, with the one that
    needs least memory. microbatch_size: where it is given."""
    share = needs.batch_size // mesh.data
    sizes = [min(microbatch_size, share)] if microbatch_size else _divisors(share)
    return min((cost_of(mesh, needs, cluster, size) for size in sizes), key=_rank)


def planned_meshes(
    needs: ModelNeeds, cluster: Cluster, microbatch_size: int | None = None, beside: Sequence[Choice] = ()
) -> Meshes:
    """All meshes of the cluster. microbatch_size: as in best_cost. beside: other choices of the plan. Raises
    Misconfigured for an impossible cluster."""
    check_cluster(cluster)
    legal, illegal = list[MeshCost](), list[Illegal]()
    for mesh in meshes(cluster.devices):
        reason = why_illegal(mesh, needs, cluster.per_machine) or _conflict(mesh, beside)
        if reason is None:
            legal.append(best_cost(mesh, needs, cluster, microbatch_size))
        else:
            illegal.append(Illegal(mesh=mesh, reason=reason))
    found = Meshes(needs=needs, cluster=cluster, legal=tuple(sorted(legal, key=_rank)), illegal=tuple(illegal))
    return found if found.best is None else replace(found, choices=choices_of(found.best))


def choices_of(cost: MeshCost) -> tuple[Choice, ...]:
    """The entries of a plan that select the mesh."""
    mesh = cost.mesh
    passes = [_choice("microbatch", cost.microbatch_size)] if cost.microbatches > 1 and mesh.pipeline == 1 else []
    return (*_of_mesh(mesh, microbatches=cost.microbatches), *passes)


def check_cluster(cluster: Cluster) -> None:
    """Raises Misconfigured for an impossible cluster."""
    if cluster.devices > cluster.per_machine and cluster.devices % cluster.per_machine:
        raise Misconfigured(
            f"{cluster.devices} devices do not fill whole machines: {_rest(cluster.devices, cluster.per_machine)}",
            where="--devices",
            fix="set the number of devices in one machine: --per-machine",
        )


def _of_mesh(mesh: Mesh, **of_pipeline: int) -> Iterator[Choice]:
    if mesh.shard is not Sharding.NONE:
        yield _choice("shard", mesh.shard.value)
    if mesh.tensor > 1:
        yield _choice("tensor", mesh.tensor)
    if mesh.pipeline > 1:
        yield _choice("pipeline", mesh.pipeline, **of_pipeline)


def _choice(technique: str, value: int | str, **options: int) -> Choice:
    return Choice(technique=technique, value=value, options=options)


def _conflict(mesh: Mesh, beside: Sequence[Choice]) -> str | None:
    found = conflicts([*beside, *_of_mesh(mesh)])
    return found[0].reason if found else None


def _rank(cost: MeshCost) -> tuple[bool, float, int, int, int, int]:
    """Those that fit first, fastest first; the others by memory. Of two that take as long, the simpler one."""
    amount = cost.step_seconds if cost.fits else cost.memory.total
    mesh = cost.mesh
    return not cost.fits, amount, cost.microbatches, mesh.pipeline, mesh.tensor, [*Sharding].index(mesh.shard)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _rest(number: int, by: int) -> str:
    return f"{number} = {number // by} × {by} + {number % by}"
