"""Ranks that tell each other numbers; a module of its own, so that started processes can import it by name."""

from __future__ import annotations

import torch

from hasten.parallel import few_numbers
from hasten.parallel.few_numbers import FromOne, from_each
from hasten.parallel.replicate import present_ranks


def told(few: int) -> list[object]:
    """What this rank hears from each, and from two of which one says what it will tell only when all have asked."""
    few_numbers._FEW = few
    ranks = present_ranks()
    each = [found.tolist() for found in from_each(torch.tensor([ranks.rank, 2.5], dtype=torch.float64), ranks)]
    numbers = torch.zeros(2)
    asked = [FromOne(numbers, 1, ranks), FromOne(torch.ones(1) * ranks.rank, 2, ranks)]
    if ranks.rank == 1:
        numbers += 7
    return [each, *(question.told().tolist() for question in asked)]
