"""What a job needs of devices: counted and measured on shapes, and what two real ranks then hold."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from hasten.facts.mesh import Mesh, Sharding
from hasten.tune.mesh_cost import memory_of
from hasten.tune.mesh_needs import needs_of
from mesh_jobs import BATCH, held_by_a_rank, mesh_job
from ranks import on_ranks

FLOAT = 4  # bytes
HELD = "weights", "gradients", "state", "activations"
WAYS = (
    (Mesh(data=2, tensor=1, pipeline=1), {}),
    (Mesh(data=2, tensor=1, pipeline=1, shard=Sharding.ZERO2), {"shard": "zero2"}),
    (Mesh(data=2, tensor=1, pipeline=1, shard=Sharding.ZERO3), {"shard": "zero3"}),
    (Mesh(data=1, tensor=2, pipeline=1), {"tensor": 2}),
)


def on_two_ranks(tmp_path, of: dict[str, Any]):
    """For each way to divide the job: what was predicted, and what each rank held in two passes a step."""
    needs = needs_of(mesh_job(**of))
    passes = [BATCH // mesh.data // 2 for mesh, _ in WAYS]
    plans = [choices | {"microbatch": size} for (_, choices), size in zip(WAYS, passes, strict=True)]
    ranks = on_ranks(2, tmp_path, held_by_a_rank, plans, of)
    for number, ((mesh, _), size) in enumerate(zip(WAYS, passes, strict=True)):
        yield mesh, memory_of(mesh, needs, size, 2), [rank[number] for rank in ranks]


def test_two_ranks_hold_what_was_predicted_of_each_kind(tmp_path):
    for mesh, predicted, ranks in on_two_ranks(tmp_path, {"width": 64, "layers": 2}):
        for held in ranks:
            for kind in HELD:
                assert asdict(predicted)[kind] == pytest.approx(held[kind], rel=0.05), (str(mesh), kind)


@pytest.mark.proof
@pytest.mark.parametrize("model", ["gpt", "encoder"])
def test_the_memory_of_two_ranks_is_as_predicted_within_15_percent(model, tmp_path, record_property):
    for mesh, predicted, ranks in on_two_ranks(tmp_path, {"model": model, "width": 384, "layers": 4}):
        for held in ranks:
            tensors = sum(held[kind] for kind in HELD)
            of_tensors = sum(asdict(predicted)[kind] for kind in HELD)
            record_property(f"{mesh}: tensors", of_tensors / tensors - 1)
            record_property(f"{mesh}: allocated", predicted.total / held["peak"] - 1)
            print(
                f"{model}, {mesh}: tensors {of_tensors / tensors - 1:+.1%}, "
                f"gathered {predicted.gathered / 2**20:.1f} and {held['gathered'] / 2**20:.1f} MiB, "
                f"all {predicted.total / 2**20:.1f} and {held['peak'] / 2**20:.1f} MiB: "
                f"{predicted.total / held['peak'] - 1:+.1%}"
            )
            assert of_tensors == pytest.approx(tensors, rel=0.15)
            assert predicted.total == pytest.approx(held["peak"], rel=0.15)
