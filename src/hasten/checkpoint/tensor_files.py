"""All tensors of a checkpoint, in one file or, where they are many bytes, in several that are worked on at once.

One processor takes longer for the digest of a file than a fast disk for writing it, so several work on several files. A
file's name says which one it is, and nothing else: each tensor is found by its own name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from hasten.checkpoint.at_once import at_once
from hasten.checkpoint.digests import Digest
from hasten.checkpoint.saved import TENSORS
from hasten.checkpoint.tensors import write_tensors

MOST_BYTES = 1 << 27  # of a file that holds more than one tensor


def write_tensor_files(folder: Path, tensors: Mapping[str, Tensor], threads: int) -> dict[str, Digest]:
    """Write them into the folder; each file's digest by its name. Raises as write_tensors does."""
    shares = {_name(number): share for number, share in enumerate(shared_out(tensors, MOST_BYTES), start=1)}
    digests = at_once(lambda name: write_tensors(folder / name, shares[name]), shares, threads)
    return dict(zip(shares, digests, strict=True))


def shared_out(tensors: Mapping[str, Tensor], most_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Shares of at most so many bytes, in the order given; a tensor that is larger has one to itself."""
    share, filled = dict[str, Tensor](), 0
    for name, tensor in tensors.items():
        if share and filled + tensor.nbytes > most_bytes:
            yield share
            share, filled = {}, 0
        share[name], filled = tensor, filled + tensor.nbytes
    if share:
        yield share


def _name(number: int) -> str:
    return TENSORS if number == 1 else f"tensors-{number}.safetensors"
