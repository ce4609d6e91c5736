"""The profile of a healthy job, for tests to change."""

from __future__ import annotations

from hasten.facts.profiles import CheckpointCost, LargerBatch, Line, LoopCost, RunProfile, Seconds


def exactly(seconds: float) -> Seconds:
    return Seconds(value=seconds, low=seconds, high=seconds)


def four_times(seconds: float) -> tuple[LargerBatch, ...]:
    """Beside one as it is, as of the healthy job."""
    return (
        LargerBatch(times=1, step=exactly(0.099)),
        LargerBatch(times=4, step=exactly(seconds)),
    )


HEALTHY = RunProfile(
    device="cpu",
    machine="two cores",
    batch_size=64,
    workers=0,
    reading_cores=1,
    steps_per_epoch=100,
    planned_steps=None,
    evaluations_per_epoch=1.0,
    steps=400,
    together=exactly(0.1),
    waited=exactly(0.001),
    computing=exactly(0.099),
    loading=exactly(0.001),
    loading_cpu=0.001,
    larger=four_times(0.4),
    no_larger="",
    parts={"data_wait": 0.001, "transfer": 0.0, "forward": 0.04, "backward": 0.05, "optimizer": 0.005, "python": 0.004},
    evaluation_seconds=1.0,
    checkpoint=CheckpointCost(bytes=1 << 20, stall_seconds=0.001, seconds=0.02, every_seconds=60.0, share=0.02 / 60),
    operations=100,
    lines=(),
    growth=None,
    new_pages=10.0,
    page_seconds=1e-6,
    page_bytes=4096,
    kept_memory=None,
    free_bytes=8 << 30,
    others=0.0,
)
LINE = Line(path="train.py", line=7, function="forward", in_loading=False, seconds=0.02, high=0.03, timed=0.02)
TURNS = LoopCost(operations=96, passes=32, over_layers=False, seconds=0.02, high=0.03, timed=0.02)
