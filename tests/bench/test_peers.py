"""What the bench of peers trains is the same in every arm, and what it counts is what it says."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from bench.arms import Arm
from bench.judging import middle_seconds
from bench.peer_environments import Environment, built, lines_of
from bench.peer_trainers import TRAINERS, Gathered, by_hand, loaders
from bench.peer_work import Columns, How, Kept, Work, of_rows, of_windows, on_all_cores, reduced
from bench.peers import (
    HASTEN,
    LEAST,
    empty_cache,
    fastest_count,
    in_order,
    whole_runs,
    whole_targets,
    wholes_table,
)
from bench.pipeline import PIPELINES
from bench.pipeline_naive import Windows, photos_script
from bench.pipeline_record import Whole
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

from bench import peer_arms, peer_environments, peers
from data.pictures import jpeg, write
from hasten.measure.paired import Window

SAMPLES, BATCH = 22, 4


def work(*, by_batches: bool = True, **length: Any) -> Work:
    drawn = torch.Generator().manual_seed(0)
    columns = torch.randn(SAMPLES, 5, generator=drawn), torch.randint(3, (SAMPLES,), generator=drawn)
    kept = Columns(columns, of_rows) if by_batches else TensorDataset(*columns)
    return Work(
        model=lambda: nn.Linear(5, 3),
        train=TensorDataset(*columns),
        valid=TensorDataset(*columns),
        careful=lambda: (kept, kept),
        by_batches=by_batches,
        loss=nn.CrossEntropyLoss(),
        batch_size=BATCH,
        metric="accuracy",
        **length,
    )


@pytest.mark.parametrize("by_batches", [False, True])
@pytest.mark.parametrize("tuned", [False, True])
def test_every_loader_gives_every_sample_once_an_epoch(tuned, by_batches):
    wanted = sorted(work().train[index][0].tolist() for index in range(SAMPLES))
    for loader, size in zip(loaders(work(by_batches=by_batches), How(tuned=tuned, workers=0)), (4, 16), strict=True):
        batches = list(loader)
        assert sorted(row for inputs, _ in batches for row in inputs.tolist()) == wanted
        assert len(batches[0][0]) == (size if tuned else BATCH)
        assert len(loader) == len(batches)


def test_rows_that_are_gathered_come_in_another_order_every_epoch():
    batches = Gathered(work().careful()[0], BATCH)
    first, second = ([inputs for inputs, _ in batches] for _ in range(2))
    assert len(first) == len(batches) == 6
    assert not torch.equal(torch.cat(first), torch.cat(second))
    assert sorted(torch.cat(first).tolist()) == sorted(torch.cat(second).tolist())


def test_rows_that_are_gathered_come_by_names_where_a_trainer_wants_them_so():
    train, _ = loaders(work(), How(tuned=True, workers=0), lambda batch: {"inputs": batch[0], "labels": batch[1]})
    assert type(train) is Gathered
    assert sum(len(batch["labels"]) for batch in train) == SAMPLES
    assert {len(batch["inputs"]) for batch in train} == {BATCH, SAMPLES % BATCH}


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize(
    ("length", "steps", "told"),
    [({"epochs": 3}, 18, 3), ({"steps": 10, "every": 5}, 10, 2)],
)
def test_a_loop_by_hand_takes_the_planned_steps_and_tells_every_evaluation(tuned, length, steps, told):
    ticks, results = list[int](), list[float]()
    by_hand(work(**length), How(tuned=tuned, workers=0, tick=lambda: ticks.append(1), told=results.append))
    assert (len(ticks), len(results)) == (steps, told)
    assert all(0 <= each <= 1 for each in results)


def test_a_loop_without_an_end_goes_on_over_epochs():
    class Enough(Exception):
        pass

    ticks = list[int]()

    def tick() -> None:
        ticks.append(1)
        if len(ticks) > 3 * SAMPLES:
            raise Enough

    with pytest.raises(Enough):
        by_hand(work(epochs=1), How(tuned=False, workers=0, tick=tick))


def test_windows_gathered_are_those_of_the_naive_data_set():
    windows = torch.randint(256, (6, 9), dtype=torch.uint8)
    inputs, targets = Columns((windows,), of_windows)[[4, 1]]
    naive = [Windows(windows)[index] for index in (4, 1)]
    assert torch.equal(inputs, torch.stack([each[0] for each in naive]))
    assert torch.equal(targets, torch.stack([each[1] for each in naive]))


def test_a_kept_picture_is_shown_as_the_naive_data_set_shows_it(tmp_path):
    write(tmp_path, {"fern/1.jpg": jpeg(40, 56), "moss/1.jpg": jpeg(56, 40, seed=1)})
    script = photos_script()
    photos = script["PhotoDataset"](str(tmp_path), train=True)
    kept = Kept(photos, script["SIZE"], script["MEAN"], script["STD"])
    for index in range(2):
        random.seed(index)
        shown, label = photos[index]
        random.seed(index)
        again, same_label = kept[index]
        torch.testing.assert_close(again, shown, rtol=0, atol=1e-5)
        assert int(label) == same_label


def test_pictures_are_decoded_several_at_a_time_and_stay_in_their_order():
    both_are_here = Barrier(2, timeout=150)  # seconds

    def told(item: int) -> int:
        both_are_here.wait()
        return -item

    assert on_all_cores(told, [3, 5]) == [-3, -5]


class Enough(Exception):
    pass


@pytest.mark.parametrize("tuned", [False, True])
def test_a_tuned_trainer_flushes_denormals_in_the_thread_that_trains(monkeypatch, tuned):
    if not can_flush():
        pytest.skip("this processor has no such mode")
    flushed = list[bool]()

    def trainer(work: Work, how: How) -> None:
        flushed.append(flushes())
        raise Enough

    monkeypatch.setattr(peer_arms, "work_of", lambda name: work())
    monkeypatch.setitem(peer_arms.TRAINERS, "by_hand", trainer)
    with pytest.raises(Enough):
        peer_arms.windows("by_hand", "rows", tuned, 0)
    assert flushed == [tuned]


def flushes() -> bool:
    """Bits are looked at: a flushing processor calls any denormal number equal to zero."""
    return not (torch.ones(1, dtype=torch.int32).view(torch.float32) * 1.0).view(torch.int32).item()


def can_flush() -> bool:
    with ThreadPoolExecutor(1) as other:  # whose mode goes with it
        return other.submit(torch.set_flush_denormal, True).result()


def test_a_whole_run_loads_its_libraries_before_its_data_and_its_clock(monkeypatch):
    events = list[str]()

    def trainer(work: Work, how: How) -> None:
        assert how.told is not None
        events.append("flushed" if flushes() else "trained")
        how.told(0.5)

    monkeypatch.setattr(peer_arms, "import_module", events.append)
    monkeypatch.setattr(peer_arms, "work_of", events.append)
    monkeypatch.setitem(peer_arms.TRAINERS, "lightning", trainer)
    # In a thread of its own: its compute threads go on flushing denormal numbers.
    with ThreadPoolExecutor(1) as other:
        found = other.submit(peer_arms.whole, "lightning", "rows", 0).result()
        assert found["value"] == 0.5
    assert events == ["lightning", "torch._dynamo", "rows", "flushed" if can_flush() else "trained"]
    assert set(peer_arms.LIBRARIES) == set(TRAINERS)


def test_a_picture_is_reduced_as_long_as_its_smallest_part_has_the_pixels_of_the_view():
    large, small = Image.new("RGB", (500, 432)), Image.new("RGB", (120, 116))
    assert reduced(large, 64).size == (167, 144)
    assert reduced(small, 64).size == small.size


# ── what is told ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lines_of_code_are_those_with_code_of_a_function_and_what_it_names(tmp_path):
    path = Path(tmp_path, "trainer.py")
    path.write_text(
        'def helper():\n    """Not\n    counted."""\n    return 1\n\n\ndef unused():\n    return 2\n\n\n'
        "def train():\n    # a comment\n\n    return (\n        helper()\n    )\n",
        encoding="utf-8",
    )
    assert lines_of(path, "train", called=False) == 4
    assert lines_of(path, "train") == 6


def test_whole_runs_are_those_of_the_number_of_workers_that_stands_better_beside_hasten():
    # The machine slows down. In two rounds of three no workers take three times as long as hasten, two workers always
    # twice as long; and yet the middle window of no workers takes 3 s, that of two workers 4 s.
    found = list[Window]()
    for hastens, without in ((1, 3), (2, 2), (10, 30)):
        for arm, seconds in (("by_hand, tuned, 0 workers", without), (HASTEN, hastens)):
            found += [Window(arm=arm, steps=10, seconds=seconds)] * 4
        found += [Window(arm="by_hand, tuned, 2 workers", steps=10, seconds=2 * hastens)] * 4
    assert middle_seconds(found, "by_hand, tuned, 0 workers") < middle_seconds(found, "by_hand, tuned, 2 workers")
    assert fastest_count(found, "by_hand") == 2


def test_the_middle_of_two_windows_lies_between_them():
    windows = [Window(arm="a", steps=2, seconds=seconds) for seconds in (8.0, 2.0, 100.0, 4.0)]
    assert middle_seconds(windows, "a") == 3.0


def test_hasten_takes_its_turn_amid_the_tuned_arms_next_to_the_careful_hand():
    ours = Arm(name=HASTEN, entry="ours.py:example")
    arms = in_order("rows", {"lightning": environment()}, ours)
    assert [arm.name for arm in arms] == [
        "by_hand, as it comes",
        "lightning, as it comes",
        "lightning, tuned, 0 workers",
        "by_hand, tuned, 0 workers",
        HASTEN,
        "by_hand, tuned, 2 workers",
        "lightning, tuned, 2 workers",
    ]


def test_whole_runs_change_their_order_with_every_other_seed(monkeypatch):
    order = list[str]()

    def ours(job: object, name: str, plan: Path, seed: int) -> Whole:
        order.append(HASTEN)
        return Whole(seconds=1, value=1, curve=[])

    def answer(python: Path, trainer: str, work: str, workers: int, seed: int) -> dict[str, Any]:
        order.append(trainer)
        return {"seconds": 2}

    monkeypatch.setattr(peers, "ours", ours)
    monkeypatch.setattr(peers, "_answer", answer)
    found = whole_runs(PIPELINES["rows"], {}, {"by_hand": 0}, Path("plan.toml"), 3)
    assert order == ["by_hand", HASTEN, HASTEN, "by_hand", "by_hand", HASTEN]
    assert [len(runs) for runs in found.values()] == [3, 3]


def test_a_cache_is_empty_every_time_and_goes_with_what_was_put_there(monkeypatch, tmp_path):
    monkeypatch.setenv("HASTEN_CACHE", "before")
    for _ in range(2):
        with empty_cache(tmp_path):
            folder = Path(os.environ["HASTEN_CACHE"])
            assert folder.parent == tmp_path
            assert not [*folder.iterdir()]
            (folder / "kept").touch()
        assert not folder.exists()
    assert os.environ["HASTEN_CACHE"] == "before"


def environment() -> Environment:
    versions = {"torch": "2.13.0", "numpy": "2.4.6", "pillow": "13.0.0"}
    return Environment(
        peer="lightning", version="2.6", seconds=6.2, packages=13, python=Path("bin/python"), versions=versions
    )


def test_an_environment_that_is_there_is_asked_what_it_computes_with(monkeypatch, tmp_path):
    folder = tmp_path / "lightning"
    folder.mkdir()
    (folder / "environment.json").write_text('{"seconds": 6.2, "packages": 13}', encoding="utf-8")
    there = {"torch": "2.13.0", "numpy": "2.4.6", "pillow": "13.0.0", "lightning": "2.6"}
    monkeypatch.setattr(peer_environments, "versions_in", lambda python: there)
    monkeypatch.setattr(peer_environments.metadata, "version", lambda name: "2.13.0+cpu")
    found = built("lightning", tmp_path)
    assert found.as_table() == environment().as_table()
    assert found.sentence.endswith("it runs with torch 2.13.0, numpy 2.4.6, pillow 13.0.0")


def test_a_line_of_the_table_tells_the_middle_run_and_what_its_user_writes():
    runs = [{"seconds": each, "value": each / 10, "peak_bytes": 2**20 * each} for each in (3, 1, 2)]
    wholes = {"lightning, tuned, 0 workers": runs, HASTEN: runs}
    lines = wholes_table(PIPELINES["rows"], wholes)
    assert lines[2].startswith("| lightning, tuned, 0 workers | 2.0 (1.0–3.0) | 0.2000 (0.1000–0.3000) | 3 | ")
    assert int(lines[2].split("|")[-2]) > int(lines[3].split("|")[-2]) > 5


def test_every_trainer_has_a_name_that_its_environment_is_built_by():
    assert [*TRAINERS] == ["by_hand", "lightning", "accelerate", "transformers"]


def test_whole_runs_of_a_peer_are_held_against_those_of_hasten_from_the_same_seeds():
    wholes = {"by_hand, tuned, 0 workers": [{"seconds": each} for each in (4.0, 9.0)]}
    (target,) = whole_targets(wholes | {HASTEN: [{"seconds": each} for each in (4.0, 10.0)]})
    assert (target.bound, target.at_most) == (LEAST["by_hand"], False)
    assert target.value == pytest.approx((4.0 / 4.0 * 9.0 / 10.0) ** 0.5)
    assert target.low < target.value < target.high
    assert target.outcome == "undecided"
