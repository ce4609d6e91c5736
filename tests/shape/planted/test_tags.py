"""Tags of traps and faults, wherever they can stand."""

from __future__ import annotations

import pytest

from shape.source import Source
from shape.tags import faults, traps


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("@pytest.mark.trap(7)\ndef test_sums(): ...", {7}),
        ("@pytest.mark.trap(7)\nclass TestSums: ...", {7}),
        ("pytestmark = [pytest.mark.gpu, pytest.mark.trap(7)]", {7}),
        ("@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.trap(7))])\ndef test_sums(n): ...", {7}),
        ("from pytest import mark\n@mark.trap(7)\ndef test_sums(): ...", {7}),
        ("@pytest.mark.trap(7)\ndef helper(): ...", set()),
        ("# pytest.mark.trap(7)\ndef test_sums(): 'pytest.mark.trap(7)'", set()),
    ],
)
def test_the_traps_of_a_file_are_those_its_tests_are_tagged_with(text, numbers):
    assert traps(Source("tests/test_step.py", text)) == numbers


def test_the_faults_of_a_file_are_found_in_the_same_places():
    text = "@pytest.mark.fault('worker hangs')\n@pytest.mark.trap(7)\ndef test_sums(): ..."
    assert faults(Source("tests/test_step.py", text)) == {"worker hangs"}
