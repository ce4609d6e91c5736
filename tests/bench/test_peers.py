"""What the bench of peers trains is the same in every arm, and what it counts is what it says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.peer_environments import lines_of
from bench.peer_trainers import TRAINERS, Gathered, by_hand, loaders
from bench.peer_work import Columns, How, Kept, Work, of_rows, of_windows, reduced
from bench.peers import HASTEN, LEAST, WORKERS, fastest_count, whole_targets, wholes_table
from bench.pipeline import PIPELINES
from bench.pipeline_naive import Windows, photos_script
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

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


def test_whole_runs_are_those_of_the_faster_number_of_workers():
    seconds = {WORKERS[0]: 0.3, WORKERS[1]: 0.2}
    windows = [
        Window(arm=f"by_hand, tuned, {count} workers", steps=10, seconds=10 * each) for count, each in seconds.items()
    ]
    assert fastest_count(windows, "by_hand") == WORKERS[1]


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
