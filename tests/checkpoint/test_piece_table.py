"""Tensors in parts: whatever their shape, and however ranks divide them, the pieces are the whole again."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.checkpoint.manifest import PIECES
from hasten.checkpoint.sharded.piece_table import InPieces, Piece, check_whole, from_json, put_together, to_json
from hasten.checkpoint.sharded.rank_files import Pieced, assembled, opened, pieced, write_part
from hasten.checkpoint.sharded.tensor_slabs import InParts, Slab, holding
from hasten.errors import Damaged
from hasten.facts.ranks import Ranks
from hasten.parallel.sharding import Split
from hasten.parallel.slabs import chunk, in_whole

TYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


@st.composite
def held(draw: Any) -> tuple[torch.Tensor, list[list[Slab]]]:
    """A tensor, and what each rank holds of it: some columns or rows, of these some rows, which may be none."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    sharing, sharding, parts = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    split = Split(draw(st.integers(0, len(shape) - 1)), parts)
    shape[split.dim] *= sharing * parts
    whole = torch.randint(0, 200, shape).to(draw(st.sampled_from(TYPES)))
    ranks = list[list[Slab]]()
    for rank in range(sharing):
        share = split.share(whole, Ranks(rank, sharing))
        for number in range(sharding):
            start, size = chunk(len(share), number, sharding)
            offsets, local = (start, *(0,) * (whole.dim() - 1)), share.narrow(0, start, size)
            found = in_whole(local, offsets, split, rank, sharing, share.shape[split.dim])
            ranks.append([Slab(*each) for each in found if each[1].numel()])
    return whole, ranks


def written(folder: Path, tensors: list[dict[str, InParts]]) -> dict[str, Pieced]:
    """By one rank after the other, and read as a checkpoint is."""
    parts = [write_part(folder, rank, holding(each), 1) for rank, each in enumerate(tensors)]
    table = from_json(to_json(put_together(each.tensors for each in parts)).encode())
    return pieced(opened(folder, [name for each in parts for name in each.files]), table)


@settings(max_examples=15, deadline=None)
@given(held(), st.data())
def test_the_pieces_of_all_ranks_are_the_whole_and_so_is_any_part_of_it(found, data):
    whole, ranks = found
    with tempfile.TemporaryDirectory() as folder:
        read = written(Path(folder), [{"w": InParts((*whole.shape,), whole.dtype, (*each,))} for each in ranks])["w"]
        assert torch.equal(read.whole(), whole)
        starts = [data.draw(st.integers(0, size)) for size in whole.shape]
        ends = [data.draw(st.integers(start, size)) for start, size in zip(starts, whole.shape, strict=True)]
        wanted = whole[tuple(map(slice, starts, ends))]
        assert torch.equal(read.region((*starts,), (*wanted.shape,)), wanted)


@given(st.integers(0, 40), st.integers(1, 9))
def test_parts_are_those_that_torch_cuts(size, ranks):
    cut = [len(each) for each in torch.arange(size).chunk(ranks)] if size else []
    found = [chunk(size, rank, ranks) for rank in range(ranks)]
    assert [each for _, each in found if each] == cut
    assert [start for start, each in found if each] == [sum(cut[:number]) for number in range(len(cut))]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)], ids=str)
def test_a_single_number_and_nothing_at_all_come_back(shape, tmp_path):
    whole = torch.full(shape, 7.0)
    slabs = (Slab((0,) * whole.dim(), whole),) if whole.numel() else ()
    read = written(tmp_path, [{"w": InParts(shape, whole.dtype, slabs)}, {"w": InParts(shape, whole.dtype, ())}])
    assert torch.equal(assembled(read["w"]), whole)
    assert [path.name for path in tmp_path.iterdir()] == (["parts-0000.safetensors"] if whole.numel() else [])


def test_what_stands_in_a_state_twice_is_written_once_and_comes_back_as_one(tmp_path):
    own = torch.arange(6.0)
    both = {name: InParts((6,), own.dtype, (Slab((0,), own),)) for name in ("model/w", "weights/w")}
    read = written(tmp_path, [both])
    assert read["model/w"] is read["weights/w"]
    assert (tmp_path / "parts-0000.safetensors").stat().st_size < 2 * own.nbytes + 100


def test_a_part_that_is_larger_than_a_file_should_be_has_several(tmp_path, monkeypatch):
    monkeypatch.setattr("hasten.checkpoint.sharded.rank_files.MOST_BYTES", 40)
    tensors = {f"w{number}": torch.full((5,), float(number)) for number in range(4)}
    read = written(tmp_path, [{name: InParts((5,), each.dtype, (Slab((0,), each),)) for name, each in tensors.items()}])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "parts-0000-2.safetensors",
        "parts-0000.safetensors",
    ]
    assert all(torch.equal(read[name].whole(), each) for name, each in tensors.items())


def pieces_of(*ranges: tuple[int, int], length: int = 6) -> InPieces:
    return InPieces((length,), "F32", tuple(Piece("f", str(start), (start,), (end - start,)) for start, end in ranges))


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (pieces_of((0, 3), (4, 6)), "as many elements"),
        (pieces_of((0, 3), (2, 5)), "overlap"),
        (pieces_of((0, 3), (0, 3)), "overlap"),
        (pieces_of((0, 3), (3, 7)), "outside"),
        (InPieces((), "F32", (Piece("f", "a", (), ()), Piece("f", "b", (), ()))), "as many elements"),
    ],
)
def test_pieces_that_are_not_the_whole_are_refused(tensor, why):
    with pytest.raises(Damaged, match=why):
        check_whole("w", tensor)


def test_ranks_that_speak_of_different_tensors_are_refused():
    with pytest.raises(Damaged, match=r"one rank has F32 \[6\], another F32 \[7\]"):
        put_together([{"w": pieces_of((0, 6))}, {"w": pieces_of(length=7)}])


PIECE = {"file": "parts-0000.safetensors", "key": "w", "offsets": [0], "shape": [2]}
GOOD = {"shape": [2], "dtype": "F32", "pieces": [PIECE]}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        GOOD | {"more": 1},
        GOOD | {"shape": [-2]},
        GOOD | {"shape": [1 << 63]},
        GOOD | {"pieces": [PIECE | {"offsets": [0, 0]}]},
        GOOD | {"pieces": [PIECE | {"offsets": [-1]}]},
    ],
    ids=str,
)
def test_a_table_that_no_rank_has_written_is_refused(fields):
    check_whole("w", from_json(json.dumps({"w": GOOD}).encode())["w"])
    with pytest.raises(Damaged, match=PIECES):
        check_whole("w", from_json(json.dumps({"w": fields}).encode())["w"])


@pytest.mark.parametrize(
    "piece",
    [
        ("parts-0000.safetensors", "another", (0,), (2,), "F32"),
        ("parts-0001.safetensors", "w [0:2]", (0,), (2,), "F32"),
        ("parts-0000.safetensors", "w [0:2]", (0,), (2,), "F64"),
        ("parts-0000.safetensors", "w [0:2]", (0,), (3,), "F32"),
    ],
    ids=str,
)
def test_pieces_that_the_files_have_not_are_refused_before_any_is_read(piece, tmp_path):
    write_part(tmp_path, 0, holding({"w": InParts((2,), torch.float32, (Slab((0,), torch.ones(2)),))}), 1)
    files = opened(tmp_path, ["parts-0000.safetensors"])
    *where, dtype = piece
    with pytest.raises(Damaged):
        pieced(files, {"w": InPieces(where[3], dtype, (Piece(*where),))})
