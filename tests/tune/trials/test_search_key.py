"""The key of a search changes with whatever may change a trial's result, and with nothing else."""

from __future__ import annotations

import pytest

from hasten.tune.trials.search_key import COUNTED, key_of

TOLD = dict.fromkeys(COUNTED, "as it was") | {"proposed": [], "refused": {}}
ENVIRONMENT = {"hasten": "1", "python": "3", "torch": "2"}


@pytest.mark.parametrize("part", ["fingerprint", "proven_on", "total_steps", "evaluations", "sources"])
def test_another_job_machine_length_or_code_has_another_key(part: str):
    assert key_of(TOLD | {part: "changed"}, ENVIRONMENT) != key_of(TOLD, ENVIRONMENT)


def test_another_version_has_another_key_and_what_a_technique_says_has_not():
    assert key_of(TOLD, ENVIRONMENT | {"torch": "3"}) != key_of(TOLD, ENVIRONMENT)
    assert key_of(TOLD | {"refused": {"cache": "why"}}, ENVIRONMENT) == key_of(TOLD, ENVIRONMENT)
