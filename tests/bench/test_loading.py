from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.loading import BASELINE, CACHED, CEILING, LEAST_ON_CPU, LEAST_ON_GPU, OURS, judged
from bench.loading_arms import DEVIATION, LOADERS, MEAN, SIZE, Pictures, decode_only, files
from bench.pictures import CLASSES, HEIGHT, WIDTH, write_pictures
from PIL import Image

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


def test_a_crop_that_shows_one_colour_is_that_colour_normalised(tmp_path):
    folder = tmp_path / "only" / "class-0"
    folder.mkdir(parents=True)
    Image.new("RGB", (WIDTH, HEIGHT), (255, 0, 51)).save(folder / "0.png")
    pixels, label = Pictures(str(tmp_path / "only"))[0]
    expected = (torch.tensor([1.0, 0.0, 0.2]) - MEAN) / DEVIATION
    torch.testing.assert_close(pixels, expected.view(-1, 1, 1).expand(3, SIZE, SIZE))
    assert label == 0


def test_a_crop_shows_every_share_of_the_picture_from_a_twelfth_to_the_whole(tmp_path):
    """Of a ramp from black to white, the range of what is shown is the width of the crop."""
    folder = tmp_path / "ramp" / "class-0"
    folder.mkdir(parents=True)
    ramp = np.broadcast_to(np.linspace(0, 255, WIDTH).astype(np.uint8)[None, :, None], (HEIGHT, WIDTH, 3))
    Image.fromarray(np.ascontiguousarray(ramp)).save(folder / "0.png")
    pictures = Pictures(str(tmp_path / "ramp"))
    shown = [pictures[0][0][0] * DEVIATION[0] + MEAN[0] for _ in range(200)]
    widths = torch.stack([values.max() - values.min() for values in shown])
    mirrored = torch.stack([values[0, 0] > values[0, -1] for values in shown])
    assert widths.min() < 0.4
    assert widths.max() > 0.9
    assert 60 <= int(mirrored.sum()) <= 140


def test_labels_are_the_classes_in_the_order_of_their_names(folder):
    assert sorted({label for _, label in files(folder)}) == list(range(CLASSES))
    assert all(Path(path).parent.name == f"class-{label}" for path, label in files(folder))


@pytest.mark.parametrize("exact", [True, False])
def test_a_ceiling_decodes_as_many_files_as_its_batches_have(exact, folder, monkeypatch):
    import simplejpeg

    decoded = []
    decode = simplejpeg.decode_jpeg
    monkeypatch.setattr(
        simplejpeg, "decode_jpeg", lambda *given, **how: decoded.append(decode(*given, **how).shape) or decoded[-1]
    )
    decode_only(folder, BATCH, threads=2, exact=exact)(3)
    assert decoded == [(HEIGHT, WIDTH, 3)] * 3 * BATCH


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


def test_on_an_accelerator_the_fastest_of_the_tuned_peers_is_judged():
    seconds = {BASELINE: 10.0, "Pillow, 2 workers": 5.0, "Pillow, 4 workers": 0.5, OURS: 0.4}
    assert outcomes(seconds, LEAST_ON_GPU) == [
        (f"{OURS}: pictures for each one of {BASELINE}", "met"),
        (f"{OURS}: pictures for each one of Pillow, 4 workers", "missed"),
    ]
