"""Whatever a file says, and through whichever door it comes: nothing in it runs, whoever opened it is told why it
cannot be used, and no control code reaches the terminal."""

from __future__ import annotations

import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import safetensors.torch
import torch

import hasten
from hasten.facts.plan_file import plan_to_toml
from support.data.small_shards import packed_folder
from support.report.samples import write_plan
from support.training.complete_runs import complete_run

from . import doors, payloads, plan_payloads, run_payloads
from .doors import DOORS, Door, Ended
from .payloads import CACHE, PLAN, RUN, SHARDS, WEIGHTS, Payload

PAYLOADS = [
    *payloads.weights_files(),
    *plan_payloads.plans(),
    *plan_payloads.trials(),
    *run_payloads.logs(),
    *run_payloads.checkpoints(),
    *payloads.shard_folders(),
    *run_payloads.caches(),
]
CLEAN = {0, 2, 15}
OF_DATA = 11  # a data set that gave something unusable
CONTROL_CODE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

JOBS = """
from support import small_job

def job():
    return small_job()
"""


def marks(number: int, door: Door, payload: Payload) -> list[pytest.MarkDecorator]:
    """number: of the payload. It goes to one of its doors in every run of the tests, and to all of them in a proof."""
    doors = [each for each in DOORS if each.is_tried_with(payload)]
    return [] if door is doors[number % len(doors)] else [pytest.mark.proof]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By kind, what every door of the kind opens well."""
    base = tmp_path_factory.mktemp("sound")
    run = complete_run(base / "job-1")
    for name in ("step-8", "step-6"):
        shutil.rmtree(run / "checkpoints" / name)
    safetensors.torch.save_file(payloads.weights(), base / "good.safetensors")
    (base / "plans").mkdir()
    write_plan(base / "plans")
    (base / "plans" / "plan.toml").write_text(plan_to_toml(hasten.make_plan(clipping=1.0)))
    doors.read_cache(base / "caches")
    return {
        WEIGHTS: base / "good.safetensors",
        PLAN: base / "plans" / "plan.toml",
        RUN: run,
        SHARDS: packed_folder(base / "packed"),
        CACHE: base / "caches",
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder while the test runs, with a job in it."""
    (tmp_path / "jobs_of_tests.py").write_text(JOBS)
    (tmp_path / "copy").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "jobs_of_tests", raising=False)
    return tmp_path


def opened(door: Door, path: Path) -> Ended:
    ended = door.opens(path)
    assert ended.code in CLEAN | ({OF_DATA} if door.kind == SHARDS else set()), ended.shown
    assert not CONTROL_CODE.search(ended.shown), ascii(ended.shown)
    for page in Path().rglob("*.html"):
        assert "<script>alert" not in page.read_text(encoding="utf-8")
    return ended


def test_every_door_is_tried_with_what_it_must_refuse():
    for door in DOORS:
        spoilt = {payload.spoils for payload in PAYLOADS if door.is_tried_with(payload)}
        assert set(door.needs) <= spoilt, door.name


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_every_door_opens_what_is_sound(here: Path, sound: dict[str, Path], door: Door):
    if not door.takes_long:
        assert opened(door, payloads.folder_copied(sound[door.kind], here / "copy")).code == 0


@pytest.mark.parametrize(
    ("door", "payload"),
    [
        pytest.param(door, payload, id=f"{door.name} | {payload.name}", marks=marks(number, door, payload))
        for door in DOORS
        for number, payload in enumerate(PAYLOADS)
        if door.is_tried_with(payload)
    ],
)
def test_nothing_runs_nothing_breaks_and_nothing_reaches_the_terminal(
    here: Path, sound: dict[str, Path], door: Door, payload: Payload
):
    marker = here / "ran"
    path = payload.put(payloads.folder_copied(sound[door.kind], here / "copy"), marker)
    ended = opened(door, path)
    assert not marker.exists()
    assert not door.must_refuse(payload) or ended.code != 0, ended.shown


@pytest.mark.parametrize("file", payloads.PICKLES)
@pytest.mark.parametrize("gadget", payloads.GADGETS)
def test_a_payload_does_run_where_it_is_let(here: Path, sound: dict[str, Path], gadget: str, file: str):
    """Or all that was said above would be said of nothing."""
    name = f"{gadget} in {file}"
    payload = next(each for each in PAYLOADS if each.name == name)
    path = payload.put(payloads.folder_copied(sound[WEIGHTS], here / "copy"), here / "ran")
    with suppress(Exception):  # what has run may leave nothing that torch could use
        torch.load(path, weights_only=False)
    assert (here / "ran").exists()
