"""The files that one rank writes of tensors in parts, and tensors read from the files of all ranks.

Each rank writes `parts-0003.safetensors` and, for many bytes, `parts-0003-2.safetensors`. A reader opens the files of
all ranks and reads any region of a tensor when it is asked for, so a checkpoint can be loaded by another number of
ranks, and larger than the memory of one.

torch.distributed.checkpoint with its HuggingFaceStorageWriter was measured instead (torch 2.13, two ranks on two cores,
256 MiB). It needs no pickle, it can fsync, and it reshards. But:
- it takes 2.8 s and 259 MiB more memory per rank, for 128 MiB of its own: it serializes a file in memory first. This
  module takes 2.0 s and 1 MiB, with digests and with reading back;
- it has no digests: a flipped byte, and a missing part in the middle of a tensor, load without an error;
- a file holds one part per tensor name; a rank's share of a fused q, k, v weight is three.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from hasten.checkpoint.digests import Digest, digest_of, in_threads
from hasten.checkpoint.safetensors_files import MOST_BYTES, TYPES, shared_out, write_tensors
from hasten.checkpoint.sharded.piece_table import InPieces, Piece, check_whole
from hasten.checkpoint.sharded.tensor_slabs import Holding
from hasten.errors import Damaged, StorageFailed
from hasten.regular_files import check_regular

_DTYPES = {word: dtype for dtype, word in TYPES.items()}


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has written, or several: files, and the tensors' pieces in these files."""

    files: Mapping[str, Digest]
    tensors: Mapping[str, InPieces]


def write_part(folder: Path, rank: int, held: Holding, threads: int) -> Part:
    """Write what this rank holds into new files of the folder, force them to the disk and read them back.

    held: its slabs are on the CPU and must not change meanwhile.
    Raises StorageFailed, also where what is read differs from what was written.
    """
    shares = dict(_shares(rank, held.slabs))
    digests = in_threads(lambda name: _written(folder / name, shares[name]), shares, threads)
    files = {key: name for name, share in shares.items() for key in share}
    tensors = {
        name: InPieces(
            tensor.shape,
            TYPES[tensor.dtype],
            tuple(
                Piece(files[key], key, slab.offsets, (*slab.tensor.shape,))
                for key, slab in zip(held.keys[name], tensor.slabs, strict=True)
            ),
        )
        for name, tensor in held.tensors.items()
    }
    return Part(dict(zip(shares, digests, strict=True)), tensors)


def _shares(rank: int, slabs: Mapping[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    for number, share in enumerate(shared_out(slabs, MOST_BYTES), start=1):
        yield f"parts-{rank:04}{f'-{number}' if number > 1 else ''}.safetensors", share


def _written(path: Path, tensors: Mapping[str, Tensor]) -> Digest:
    digest = write_tensors(path, tensors)
    if digest_of(path, digest.bytes) != digest:
        fix = "check the disk, and the memory of this machine"
        raise StorageFailed("what is read back differs from what was written", where=str(path), fix=fix)
    return digest


class Pieced:
    """A tensor in pieces on the disk. Its files stay open, because the run may remove old checkpoints."""

    def __init__(self, tensor: InPieces, files: Mapping[str, Any]) -> None:
        """Raises Damaged where the files have no such pieces."""
        if tensor.dtype not in _DTYPES:
            raise Damaged(f"unknown dtype {tensor.dtype[:20]}")
        for piece in tensor.pieces:
            found = files[piece.file].get_slice(piece.key) if piece.file in files else None
            if found is None or (found.get_dtype(), (*found.get_shape(),)) != (tensor.dtype, piece.shape):
                raise Damaged(f"{piece.file[:200]} has no piece {piece.key[:200]}")
        self._tensor, self._files = tensor, files

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self._tensor.dtype]

    def whole(self) -> Tensor:
        """The whole tensor, on the CPU, in new memory."""
        return self.region((0,) * len(self._tensor.shape), self._tensor.shape)

    def region(self, offsets: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        """The region that begins at these offsets, on the CPU, in new memory. Only its pieces are read."""
        found = torch.empty(shape, dtype=self.dtype)
        for piece in self._tensor.pieces:
            starts = tuple(map(max, piece.offsets, offsets))
            ends = tuple(
                min(one + its, other + mine)
                for one, its, other, mine in zip(piece.offsets, piece.shape, offsets, shape, strict=True)
            )
            if all(start < end for start, end in zip(starts, ends, strict=True)):
                there, here = _ranges(starts, ends, piece.offsets), _ranges(starts, ends, offsets)
                found[here] = self._files[piece.file].get_tensor(piece.key)[there]
        return found


def opened(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """The files of these names, open for pieced(). Raises Damaged where one is not a valid safetensors file."""
    return {name: _opened(folder / name) for name in names}


def pieced(files: Mapping[str, Any], tensors: Mapping[str, InPieces]) -> dict[str, Pieced]:
    """Tensors of the same pieces are one object. Raises Damaged where the files do not match the table."""
    met, found = dict[InPieces, Pieced](), dict[str, Pieced]()
    for name, tensor in tensors.items():
        if tensor not in met:
            check_whole(name, tensor)
            try:
                met[tensor] = Pieced(tensor, files)
            except safetensors.SafetensorError as error:
                raise Damaged(f"a piece of {name} is missing: {error}") from error
        found[name] = met[tensor]
    return found


def assembled(value: Any) -> Any:
    """The whole tensor for one in pieces; anything else unchanged."""
    return value.whole() if isinstance(value, Pieced) else value


def _opened(path: Path) -> Any:
    try:
        check_regular(path)
        return safetensors.safe_open(path, framework="pt")
    except (safetensors.SafetensorError, OSError) as error:
        raise Damaged(f"{path.name} is not a valid safetensors file: {error}") from error


def _ranges(starts: tuple[int, ...], ends: tuple[int, ...], origin: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(start - zero, end - zero) for start, end, zero in zip(starts, ends, origin, strict=True))
