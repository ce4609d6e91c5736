"""What tells one content of a tensor from another, without a copy of it: 64 bits over all of its numbers and places.

Each eight bytes are mixed with their place by the finalizer of splitmix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014), and added up: so also numbers that only change places change the sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.training.forms import is_sparse, place_in_memory

_AT_ONCE = 1 << 18  # words: what they are mixed in stays in a processor's cache
_STEP, _FIRST, _SECOND = (number - (1 << 64) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def checksum(tensor: Tensor) -> int | None:
    """Waits for the device. Of a quantized tensor that of its whole numbers; None where can_be_copied is not true."""
    if is_sparse(tensor):
        return hash(tuple(map(checksum, parts_of_sparse(tensor.detach()))))
    if place_in_memory(tensor) is None:
        return None
    content = _bytes_of(tensor)
    whole = content.numel() // 8 * 8
    rest = content[whole:].to(torch.int64)
    words = [*content[:whole].view(torch.int64).split(_AT_ONCE), *([rest] if len(rest) else [])]
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    place = 0
    for each in words:
        total += _mixed(each, place).sum()
        place += len(each)
    return int(total)


def parts_of_sparse(tensor: Tensor) -> tuple[Tensor, ...]:
    """The tensors of its places, and then that of its values."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def _bytes_of(tensor: Tensor) -> Tensor:
    plain = tensor.detach().as_subclass(Tensor)
    plain = (plain.int_repr() if plain.is_quantized else plain.resolve_conj().resolve_neg()).contiguous()
    if plain.storage_offset() * plain.element_size() % 8:  # where no words begin
        plain = plain.clone()
    return plain.view(-1).view(torch.uint8)


def _mixed(words: Tensor, place: int) -> Tensor:
    found = torch.arange(place + 1, place + 1 + len(words), device=words.device).mul_(_STEP).bitwise_xor_(words)
    found.bitwise_xor_(_shifted(found, 30)).mul_(_FIRST)
    found.bitwise_xor_(_shifted(found, 27)).mul_(_SECOND)
    return found.bitwise_xor_(_shifted(found, 31))


def _shifted(words: Tensor, bits: int) -> Tensor:
    """To the right, filled with zeros: torch fills with the sign."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)
