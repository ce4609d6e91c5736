from __future__ import annotations

import pytest
import torch
from bench.accelerator import AGAIN, CASES, HASTEN, STRICT, flops_of_token, shares_of_waiting, targets_of
from bench.accelerator_arms import by_hand, by_hasten, read_notes
from bench.accelerator_works import CONTEXT, TABLE, WORKS, resnet_50, small_pictures
from bench.arms import Measured

from bench import accelerator_works
from hasten.measure.paired_timing import Window, interleaved

MILLIONS = {"resnet-50": 25.56, "gpt-2": 124.48, "vit-h": 632.05}  # parameters, as their papers and torch's own count


@pytest.mark.parametrize("name", MILLIONS)
def test_the_models_are_those_whose_names_they_have(name):
    with torch.device("meta"):
        model = WORKS[name].model()
    assert sum(each.numel() for each in model.parameters()) / 1e6 == pytest.approx(MILLIONS[name], abs=0.01)


def test_resnet_50_has_its_layers_and_strides():
    with torch.device("meta"):
        model = resnet_50()
        before_the_pool = model[:-3](torch.zeros(2, 3, 224, 224))
    assert sum(isinstance(each, torch.nn.Conv2d) for each in model.modules()) == 53
    assert before_the_pool.shape == (2, 2048, 7, 7)


def test_gpt_2_predicts_every_next_token_with_the_weights_of_its_tokens():
    with torch.device("meta"):
        model = WORKS["gpt-2"].model()
        assert model(torch.zeros(1, CONTEXT, dtype=torch.int64)).shape == (1, CONTEXT, TABLE)
    assert model.head[1].weight is model.bytes.weight


def test_a_token_of_gpt_2_takes_the_arithmetic_of_the_formula():
    with torch.device("meta"):
        assert flops_of_token(WORKS["gpt-2"]) == 6 * (124_439_808 + 47 * 768) + 12 * 12 * 768 * 1024


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


def test_the_share_of_waiting_is_of_windows_alone_and_not_of_the_warm_up():
    windows = tuple(Window(arm=HASTEN, steps=1, seconds=2.0) for _ in range(3))
    notes = {HASTEN: [{"waited_seconds": waited} for waited in (9.0, 0.2, 0.4, 0.0)]}
    assert shares_of_waiting(HASTEN, Measured(windows=windows, one_off=()), notes) == [0.1, 0.2, 0.0]
