"""The examples learn, from data that is the same in every run, and their plans are plans of this version."""

from __future__ import annotations

import dataclasses
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

import hasten
from hasten.data.images.image_folder import IMAGENET_DEVIATION, IMAGENET_MEAN
from hasten.techniques import ALL
from hasten.training.setup.load_job import load_job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("digits", "photos", "text")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_surroundings(cache: Path, monkeypatch: pytest.MonkeyPatch, modules_as_before: None) -> None:
    """The examples' own data, whatever is set here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    for variable in ("HASTEN_PHOTOS", "HASTEN_TEXT"):
        monkeypatch.delenv(variable, raising=False)


def small_job(example: str) -> hasten.Job:
    return load_job(f"{EXAMPLES / example}.py:small_job")


def module_of(example: str, name: str | None = None) -> ModuleType:
    """The example's own, or another one beside it."""
    small_job(example)
    return sys.modules[name or example]


@pytest.mark.proof
@pytest.mark.parametrize(("example", "least"), [("digits", 0.95), ("photos", 0.9)])
def test_a_small_job_names_most_of_what_it_never_saw(example: str, least: float) -> None:
    assert hasten.train(small_job(example), receivers=[]).results["accuracy"] >= least


@pytest.mark.proof
def test_a_small_job_knows_more_of_python_than_which_byte_follows_which() -> None:
    """The yardstick is a table of how often each byte followed each other one, the best that needs no network."""
    learned, held_out = (torch.frombuffer(bytearray(text), dtype=torch.uint8) for text in module_of("text").read_text())
    pairs = torch.bincount(learned[:-1].int() * 256 + learned[1:], minlength=256 * 256).view(256, 256) + 1
    shares = pairs / pairs.sum(1, keepdim=True)
    yardstick = -shares[held_out[:-1].int(), held_out[1:].int()].log().mean().item()
    assert hasten.train(small_job("text"), receivers=[]).results["loss"] < yardstick


@pytest.mark.parametrize("example", NAMES)
def test_the_data_is_the_same_every_time(example: str) -> None:
    first, second = small_job(example), small_job(example)
    for one, other in ((first.train, second.train), (first.valid, second.valid)):
        if example == "photos":
            contents = [[path.read_bytes() for path in sorted(each.root.rglob("*.jpg"))] for each in (one, other)]
            assert contents[0] == contents[1] != []
        else:
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_no_pixel_is_both_learned_and_judged_by() -> None:
    """Also not across classes: a lake's crop must not show the trees that another class is judged by."""
    photos = module_of("photos", "sample_photos")
    for _, photograph, (left, top, right, bottom), _ in photos.AREAS:
        for _, other_photograph, _, (other_left, other_top, other_right, other_bottom) in photos.AREAS:
            beside = right <= other_left or other_right <= left
            above = bottom <= other_top or other_bottom <= top
            assert photograph != other_photograph or beside or above


def test_photos_of_ones_own_are_learned_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("train", "valid"):
        for name in ("dark", "light"):
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("RGB", (90, 70), "black" if name == "dark" else "white").save(tmp_path / part / name / "1.jpeg")
    monkeypatch.setenv("HASTEN_PHOTOS", str(tmp_path))
    job = small_job("photos")
    assert (job.train.classes, len(job.train), len(job.valid)) == (["dark", "light"], 2, 2)
    view, label = job.valid[1]
    white = (1 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_DEVIATION)
    torch.testing.assert_close(view, white[:, None, None].expand(3, 64, 64))
    assert label == 1
    assert job.model()(view[None]).shape == (1, 2)


def test_windows_predict_every_byte_once() -> None:
    windows = module_of("text").windows(bytes(range(41)), context=8)
    assert windows[:, 1:].flatten().tolist() == list(range(1, 41))
    assert all(one[-1] == following[0] for one, following in pairwise(windows))


def test_a_text_of_ones_own_is_learned_and_its_last_tenth_is_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = module_of("text")
    (tmp_path / "book.txt").write_bytes(bytes(range(200)))
    monkeypatch.setenv("HASTEN_TEXT", str(tmp_path / "book.txt"))
    assert text.read_text() == (bytes(range(180)), bytes(range(180, 200)))


def test_no_module_of_the_standard_library_is_both_learned_and_judged_by() -> None:
    learned, held_out = module_of("text").read_text()
    whole = sum(path.stat().st_size for path in Path(dataclasses.__file__).parent.glob("*.py"))
    assert len(learned) + len(held_out) == whole
    assert held_out not in learned
    assert 0 < len(held_out) < len(learned) / 4


@pytest.mark.parametrize("example", NAMES)
def test_a_plan_of_an_example_is_valid_and_trains_it(example: str) -> None:
    plan = hasten.read_plan(EXAMPLES / "plans" / f"{example}.toml", {technique.name for technique in ALL})
    short = {"epochs": None, "max_steps": 2, "evaluate_every": None, "valid": None, "metrics": {}}
    result = hasten.train(dataclasses.replace(small_job(example), **short), plan, receivers=[])
    assert (result.steps, result.skipped_updates) == (2, 0)
    assert all(weight.isfinite().all() for weight in result.weights.values())
