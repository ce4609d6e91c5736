"""What the bench of loading reads, and how it is judged."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from bench.loading import BASELINE, CACHED, CEILING, LEAST_ON_CPU, OURS, judged
from bench.loading_arms import DEVIATION, LOADERS, MEAN, SIZE, files
from bench.pictures import write_pictures

from hasten.measure.paired_timing import Window, interleaved

# webdataset leaves the last shard of an epoch for the garbage collector to close, in this test or a later one.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file .*shard-:ResourceWarning")

PICTURES, BATCH = 20, 8
HOW_MANY = {"hasten": "threads", "hasten_cached": "threads"}

NAMES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name in ("webdataset", "litdata") and find_spec(name) is None, reason=f"{name} is not installed"
        ),
    )
    for name in LOADERS
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(write_pictures(tmp_path_factory.mktemp("bench") / "pictures", PICTURES))


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_delivers_what_a_model_takes_of_every_picture_once_an_epoch(name, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    epoch = LOADERS[name](folder=folder, batch_size=BATCH, **{HOW_MANY.get(name, "workers"): 0})
    first, second = [list(epoch()) for _ in range(2)]
    for batches in (first, second):
        assert [len(labels) for _, labels in batches] == [8, 8, 4]
        assert sorted(torch.cat([labels for _, labels in batches]).tolist()) == sorted(
            label for _, label in files(folder)
        )
    for pixels, labels in first:
        assert pixels.dtype is torch.float32
        assert pixels.shape[1:] == (3, SIZE, SIZE)
        assert labels.dtype is torch.int64
        shown = pixels.cpu() * DEVIATION.view(-1, 1, 1) + MEAN.view(-1, 1, 1)
        assert -1e-5 < shown.min() < 0.3
        assert 0.7 < shown.max() < 1 + 1e-5
    assert not torch.equal(first[0][0], second[0][0])


def outcomes(seconds: dict[str, float], least) -> list[tuple[str, str]]:
    windows = [Window(arm=name, steps=64, seconds=seconds[name]) for name in interleaved(list(seconds), 12)]
    return [(target.name, target.outcome) for target in judged(windows, least)]


def test_on_a_processor_the_baseline_the_ceiling_and_the_cache_are_judged():
    seconds = {BASELINE: 10.0, "Pillow, 2 workers": 5.0, OURS: 1.9, CACHED: 0.7, CEILING: 1.7}
    assert outcomes(seconds, LEAST_ON_CPU) == [
        (f"{OURS}: pictures for each one of {BASELINE}", "met"),
        (f"{OURS}: pictures for each one of {CEILING}", "met"),
        (f"{CACHED}: pictures for each one of {BASELINE}", "missed"),
    ]
