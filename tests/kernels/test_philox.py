"""Philox gives the numbers of the paper's own library, and each of them is a function of seed, row and column alone."""

from __future__ import annotations

import pytest
import torch

from hasten.kernels.activation.philox import drawn, philox

# From Random123's file of known answers, philox 4x32, 10 rounds: counter, key, result.
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (*PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@pytest.mark.parametrize(("counter", "key", "wanted"), KNOWN)
def test_it_gives_the_known_answers(counter, key, wanted):
    found = philox(tuple(torch.tensor([each]) for each in counter), key)
    assert tuple(int(each) for each in found) == wanted


def test_sixteen_counters_serve_64_columns():
    seed, row, column = 2**63 - 12345, 7, 64 * 3 + 16 * 2 + 5
    counter = (torch.tensor(each) for each in (3 * 16 + 5, row, 0, 0))
    wanted = philox(tuple(counter), (seed & 0xFFFFFFFF, seed >> 32))[2]
    assert drawn(seed, 9, 300)[row, column] == wanted


def test_a_number_does_not_depend_on_how_many_there_are():
    assert torch.equal(drawn(5, 40, 200)[:7, :33], drawn(5, 7, 33))


def test_bits_are_fair_and_independent_of_their_neighbours():
    """Of n fair bits the share that is set is ½ ± 5 · ½ / √n, but for one time in two million."""
    words = drawn(1, 500, 640)
    for name, each in {
        "a number": words,
        "beside the next column": words[:, 1:] ^ words[:, :-1],
        "beside the one of the same counter": words[:, 16:] ^ words[:, :-16],
        "beside the next row": words[1:] ^ words[:-1],
        "beside the next seed": words ^ drawn(2, 500, 640),
    }.items():
        for bit in range(32):
            share = (each >> bit & 1).double().mean()
            assert (share - 0.5).abs() < 5 * 0.5 / each.numel() ** 0.5, f"bit {bit} of {name}"
