"""What launchers tell a process about the others."""

import pytest

from hasten.errors import Misconfigured
from hasten.facts.ranks import Launched, Ranks, launched, leads

SECOND_OF_FOUR = {"WORLD_SIZE": "4", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_a_process_that_nobody_launched_is_alone_and_leads():
    assert launched({}) == Launched()
    assert launched({"WORLD_SIZE": "1", "RANK": "0"}) == Launched()
    assert (launched({}).all.leads, launched({}).all.many) == (True, False)


def test_where_no_launcher_speaks_of_machines_all_are_on_this_one():
    assert launched({"WORLD_SIZE": "2", "RANK": "1"}) == Launched(all=Ranks(1, 2), here=Ranks(1, 2))


def test_a_launched_process_knows_its_place_among_all_and_on_its_machine():
    found = launched(SECOND_OF_FOUR)
    assert found == Launched(all=Ranks(1, 4), here=Ranks(1, 2))
    assert (found.all.many, found.all.leads) == (True, False)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"RANK": ""}, "RANK"),
        ({"RANK": "first"}, "RANK"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE"),
        ({"RANK": "4"}, "WORLD_SIZE=4"),
        ({"LOCAL_RANK": "2"}, "WORLD_SIZE=4"),
        ({"LOCAL_WORLD_SIZE": "5"}, "WORLD_SIZE=4"),
    ],
)
def test_what_cannot_be_so_is_refused_with_the_variable(changes, where):
    with pytest.raises(Misconfigured) as refused:
        launched(SECOND_OF_FOUR | changes)
    assert refused.value.where == where
    assert refused.value.fix


def test_who_was_told_what_cannot_be_so_talks_of_it():
    told = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert leads({})
    assert leads(told | {"RANK": "0"})
    assert not leads(told | {"RANK": "1"})
    assert leads(told | {"RANK": "5"})
