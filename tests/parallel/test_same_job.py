"""Ranks that build different jobs are refused before they train; whichever fails while it builds ends all."""

from __future__ import annotations

import re

import pytest
import torch

from support.ranks.differing_jobs import KINDS, refusals, trained_with_what_may_differ
from support.ranks.launching import ran, still_there
from support.ranks.process_group import on_ranks

WAY = "the processes of this run have built different jobs: "


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    return on_ranks(2, tmp_path_factory.mktemp("ranks"), refusals)


@pytest.mark.fault("uneven inputs")
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_differ_are_refused_on_both_with_both_values(refused, kind):
    first, second = (rank[kind] for rank in refused)
    assert first == second
    code, name, what = first
    assert (code, name) == (2, "Misconfigured")
    assert what.startswith(WAY)
    assert KINDS[kind][2] in what
    assert "rank 0" in what
    assert "rank 1" in what


def test_ranks_may_keep_files_and_counters_of_their_own(tmp_path):
    first, second = on_ranks(2, tmp_path, trained_with_what_may_differ)
    assert all(torch.equal(mine, other) for mine, other in zip(first, second, strict=True))


@pytest.mark.proof
@pytest.mark.fault("uneven inputs")
def test_a_command_says_once_how_its_ranks_differ_and_leaves_no_process(tmp_path):
    ended = ran(tmp_path, "of_another_length", "--nproc", "2")
    assert ended.returncode == 2
    assert ended.stderr.count(WAY) == 1
    assert "train is 40 samples" in ended.stderr
    assert "32 samples" in ended.stderr
    assert "fault of hasten" not in ended.stderr
    assert still_there(tmp_path) == []
    assert not (tmp_path / "runs" / "of_another_length-1").exists()


@pytest.mark.proof
@pytest.mark.fault("user exception")
@pytest.mark.parametrize("where", ["the_function", "the_model"])
def test_a_rank_that_fails_while_it_builds_its_job_ends_all_and_is_named(tmp_path, where):
    ended = ran(tmp_path, f"raises_in_{where}", "--nproc", "2")
    assert ended.returncode == 10
    assert "ValueError: the second has no data" in ended.stderr
    assert re.search(r"rank +1", ended.stderr)  # in the words of the first rank, or of the one that failed
    assert "fault of hasten" not in ended.stderr
    assert still_there(tmp_path) == []
