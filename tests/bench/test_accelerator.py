from __future__ import annotations

import pytest
import torch
from bench.accelerator import AGAIN, CASES, HASTEN, STRICT, targets_of
from bench.accelerator_arms import by_hand, by_hasten, read_notes
from bench.accelerator_works import WORKS, small_pictures
from bench.arms import Measured

from bench import accelerator_works
from hasten.measure.paired_timing import Window, interleaved

MILLIONS = {"resnet-50": 25.56, "gpt-2": 124.48, "vit-h": 632.05}  # parameters, as their papers and torch's own count


@pytest.mark.parametrize("name", MILLIONS)
def test_the_models_are_those_whose_names_they_have(name):
    with torch.device("meta"):
        model = WORKS[name].model()
    assert sum(each.numel() for each in model.parameters()) / 1e6 == pytest.approx(MILLIONS[name], abs=0.01)


@pytest.fixture
def fewer(monkeypatch):
    """Small pictures, of which there are few."""
    work = WORKS["small-pictures"]
    few = {name: getattr(work, name) for name in ("loss", "optimizer", "unit", "convolutional")}
    made = accelerator_works.Work(
        model=lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 900, 10)),
        columns=lambda: small_pictures(12),
        batch_size=4,
        **few,
    )
    monkeypatch.setitem(WORKS, "small-pictures", made)


def test_windows_of_a_loop_and_of_hasten_take_steps_and_note_what_they_held(fewer, tmp_path):
    notes = tmp_path / "notes"
    given = {"work": "small-pictures", "notes": str(notes), "batch_size": 4}
    for window in (
        by_hand(**given, name=STRICT, tuned=False),
        by_hasten(**given, name=HASTEN, choices={"channels_last": True}),
    ):
        window(2)
        window(5)
    found = read_notes(notes)
    assert {arm: [line["steps"] for line in lines] for arm, lines in found.items()} == {STRICT: [2, 5], HASTEN: [2, 5]}


def outcomes(name: str, seconds: dict[str, float], peaks: dict[str, int]) -> dict[str, str]:
    arms = [*CASES[name].arms, AGAIN]
    windows = [Window(arm=arm, steps=10, seconds=10 * seconds[arm]) for arm in interleaved(arms, 12)]
    notes = {arm: [{"peak_bytes": peaks[arm], "waited_seconds": 0.0}] * 13 for arm in arms}
    measured = Measured(windows=tuple(windows), one_off=())
    return {target.name: target.outcome for target in targets_of(CASES[name], WORKS[name], measured, notes, None)}


def test_speed_and_memory_are_judged_against_strict_float32():
    peaks = {STRICT: 100, HASTEN: 40, AGAIN: 40}
    fast = outcomes("vit-h", {STRICT: 7.0, HASTEN: 1.0, AGAIN: 1.0}, peaks)
    slow = outcomes("vit-h", {STRICT: 5.0, HASTEN: 1.0, AGAIN: 1.0}, peaks | {HASTEN: 60})
    assert list(fast.values()) == ["met", "met"]
    assert list(slow.values()) == ["missed", "missed"]
