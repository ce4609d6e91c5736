"""Ranks that hold a model in parts save these themselves: what it takes, and what happens when one of them cannot."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hasten.checkpoint.store import Store
from hasten.facts.plan import make_plan
from hasten.facts.plan_file import plan_to_toml
from support.parallel.part_jobs import WHOLE, WIDTH, allocated, read_to_go_on, saved_without_a_log
from support.ranks.launching import environment, losses, ran, still_there
from support.ranks.process_group import on_ranks

IN_PARTS = ("--nproc", "2", "--plan", "in_parts.toml", "--run-dir", "run")


@pytest.fixture
def folder(tmp_path):
    """Where a plan lies by which two processes hold the model in parts."""
    (tmp_path / "in_parts.toml").write_text(plan_to_toml(make_plan(shard="zero3")))
    return tmp_path


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The losses of one process that holds the whole."""
    place = tmp_path_factory.mktemp("alone")
    assert ran(place, "cut_short_in_layers", "--run-dir", "whole").returncode == 0
    return losses(place / "whole")


def commanded(folder, *command):
    return subprocess.run(
        [sys.executable, "-m", "hasten", *command],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def saved(folder):
    return [each.step for each in Store(folder / "run" / "checkpoints").found()]


@pytest.mark.trap(38)
@pytest.mark.parametrize("choices", [{"shard": "zero3"}, pytest.param({"tensor": 2}, marks=pytest.mark.proof)], ids=str)
def test_no_rank_takes_memory_for_more_than_a_part_of_the_largest_tensor(choices, tmp_path):
    for found in on_ranks(2, tmp_path, allocated, str(tmp_path / "run"), choices):
        assert len(found["training"]) == len(found["writing"]) == 4
        assert max(found["training"] + found["writing"]) == WHOLE // 2  # the copy of one part
        assert max(found["whole"]) >= WHOLE  # to make it whole is seen


def test_who_goes_on_in_parts_reads_no_more_than_its_own(tmp_path):
    folder = str(tmp_path / "run")
    on_ranks(2, tmp_path, allocated, folder, {"shard": "zero3"})
    (tmp_path / "again").mkdir()
    weights = 2 * WHOLE + 3 * WHOLE // (2 * WIDTH)  # two matrices and two biases
    for largest, together in on_ranks(2, tmp_path / "again", read_to_go_on, folder, {"shard": "zero3"}):
        assert largest == WHOLE // 2
        assert together == 3 * weights // 2  # of them, and of the two averages that AdamW keeps of each


@pytest.mark.proof
@pytest.mark.fault("disk full, EIO")
def test_a_disk_that_is_full_for_one_rank_is_told_and_the_run_goes_on(folder, alone):
    ended = ran(folder, "full_for_the_second", *IN_PARTS, "--save-every", "3", "--keep-every", "1")
    assert ended.returncode == 0, ended.stderr
    assert saved(folder) == [20, 18, 15, 12, 3]
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    told = [each["text"] for each in lines if each["event"] == "noticed" and "could not be saved" in each["text"]]
    assert ["rank 1: could not be written: File too large" in text for text in told] == [True, True]
    assert losses(folder / "run") == pytest.approx(alone, rel=1e-5)
    assert [path.name for path in (folder / "run" / "checkpoints").glob(".*")] == []


@pytest.mark.fault("disk full, EIO")
def test_a_save_that_the_first_cannot_begin_holds_nobody_up(tmp_path):
    first, _ = on_ranks(2, tmp_path, saved_without_a_log, str(tmp_path / "run"), {"shard": "zero3"})
    assert ["no room for the log" in each for each in first] == [True]
    assert saved(tmp_path) == [4, 3, 1]
    for each in Store(tmp_path / "run" / "checkpoints").found():
        each.verify()


@pytest.mark.proof
@pytest.mark.fault("disk full, EIO")
def test_the_third_failure_of_one_rank_in_a_row_ends_all(folder):
    ended = ran(folder, "full_for_the_second_from_then_on", *IN_PARTS, "--save-every", "3")
    assert ended.returncode == 15, ended.stderr
    assert "3 checkpoints in a row could not be saved; the last: rank 1: could not be written" in ended.stderr
    assert saved(folder) == [3]
    assert still_there(folder) == []


@pytest.mark.proof
@pytest.mark.fault("killed during save, rotation or resume")
@pytest.mark.fault("one rank dies, a collective hangs")
def test_a_rank_that_is_killed_while_it_saves_leaves_the_checkpoint_before_it(folder, alone):
    ended = ran(folder, "dies_while_it_saves", *IN_PARTS, "--save-every", "3")
    assert ended.returncode == 14, ended.stderr
    assert "fault of hasten" not in ended.stderr
    assert saved(folder) == [6, 3]
    assert still_there(folder) == []
    (folder / "lives").touch()
    ended = ran(folder, "dies_while_it_saves", *IN_PARTS, "--resume")
    assert ended.returncode == 0, ended.stderr
    assert losses(folder / "run") == pytest.approx(alone, rel=1e-5)
    assert [path.name for path in (folder / "run" / "checkpoints").glob(".*")] == []


@pytest.mark.proof
@pytest.mark.fault("corrupt or truncated checkpoint")
def test_a_flipped_byte_in_a_part_is_found_and_the_run_goes_on_from_the_checkpoint_before(folder, alone):
    (folder / "cut").touch()
    assert ran(folder, "cut_short_in_layers", *IN_PARTS, "--save-every", "3").returncode == 10
    (folder / "cut").unlink()
    assert saved(folder) == [6, 3]
    part = folder / "run" / "checkpoints" / "step-6" / "parts-0001.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    ended = ran(folder, "cut_short_in_layers", "--run-dir", "run", "--resume")
    assert ended.returncode == 0, ended.stderr
    told = " ".join((ended.stdout + ended.stderr).split())
    assert "step-6 is damaged and not used: parts-0001.safetensors was changed after it was written" in told
    assert losses(folder / "run") == pytest.approx(alone, rel=1e-5)


@pytest.mark.proof
def test_a_run_that_is_saved_in_parts_goes_on_to_the_bit_is_listed_and_exported(folder):
    whole = ran(folder, "cut_short_in_layers", *IN_PARTS[:-1], "whole", "--save-every", "3")
    assert whole.returncode == 0, whole.stderr
    (folder / "cut").touch()
    assert ran(folder, "cut_short_in_layers", *IN_PARTS, "--save-every", "3").returncode == 10
    (folder / "cut").unlink()
    assert ran(folder, "cut_short_in_layers", *IN_PARTS, "--resume").returncode == 0
    assert losses(folder / "run") == losses(folder / "whole")
    assert saved(folder) == [20, 18]
    newest = folder / "run" / "checkpoints" / "step-20"
    assert {"parts-0000.safetensors", "parts-0001.safetensors", "pieces.json"} <= {
        each.name for each in newest.iterdir()
    }
    listed = commanded(folder, "checkpoints", "run")
    assert listed.returncode == 0, listed.stderr
    rows = [line.split() for line in listed.stdout.splitlines() if line.endswith("  verified")]
    assert len(rows) == 2, listed.stdout
    exported = commanded(folder, "export", "run", "-o", "exported.safetensors")
    assert exported.returncode == 0, exported.stderr
    assert (folder / "exported.safetensors").read_bytes() == (folder / "run" / "model.safetensors").read_bytes()
    assert (folder / "exported.safetensors").read_bytes() == (folder / "whole" / "model.safetensors").read_bytes()
