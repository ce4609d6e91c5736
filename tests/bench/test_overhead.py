from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from bench.overhead import BASELINE, OURS, judged

from bench import overhead_arms
from hasten.measure.paired_timing import Comparison, Window, compare, interleaved


class Enough(Exception):
    pass


def trained(name: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The weights of an arm when its step number `steps + 1` begins."""
    models = []

    def network(tick):
        models.append(build(tick))
        return models[-1]

    def tick() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Enough

    build, left = overhead_arms.Network, steps
    with monkeypatch.context() as patched:
        patched.setattr(overhead_arms, "Network", network)
        patched.setattr(overhead_arms, "stepwise", lambda train: train)
        with pytest.raises(Enough):
            getattr(overhead_arms, name)()(tick)
    return [parameter.detach().clone() for parameter in models[-1].parameters()]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", OURS)
def test_every_arm_of_ours_trains_exactly_what_the_plain_loop_trains(name, monkeypatch):
    expected = trained(BASELINE, 60, monkeypatch)
    for ours, plain in zip(trained(name, 60, monkeypatch), expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "file"),
    [(BASELINE, "losses.jsonl"), ("hasten_step", "losses.jsonl"), ("hasten_train", "run/metrics.jsonl")],
)
def test_every_arm_writes_its_loss_down_every_fifty_steps(name, file, monkeypatch):
    trained(name, 120, monkeypatch)
    lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
    lines = [line for line in lines if "loss" in line]
    assert [line["step"] for line in lines] == [50, 100]
    assert all(1 < line["loss"] < 4 for line in lines)  # of ten classes and random labels: near log 10


def comparisons(microseconds: dict[str, float]) -> list[Comparison]:
    steps = 1000
    windows = [
        Window(arm=name, steps=steps, seconds=steps * 1e-6 * microseconds[name])
        for name in interleaved(list(microseconds), 12)
    ]
    return [compare(windows, baseline=BASELINE, challenger=name) for name in microseconds if name != BASELINE]


def outcomes(microseconds: dict[str, float]) -> dict[str, str]:
    return {target.name.partition(": ")[2]: target.outcome for target in judged(comparisons(microseconds))}


def test_targets_are_judged_for_the_whole_engine_against_every_peer():
    assert outcomes({BASELINE: 100.0, "hasten_train": 110.0, "lightning_tuned": 300.0, "accelerate_tuned": 130.0}) == {
        "µs a step beyond plain": "met",
        "its cost as a share of lightning_tuned's": "met",
        "its cost as a share of accelerate_tuned's": "missed",
    }
    assert outcomes({BASELINE: 100.0, "hasten_train": 120.0}) == {"µs a step beyond plain": "missed"}
