"""LoaderThreads that read ahead: the answers come in order, and nothing that goes wrong stays behind."""

import threading
from itertools import count as counted

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.data.workers.loader_threads import LoaderThreads
from hasten.errors import Hang

PATIENT = 60.0  # seconds: longer than any test


class Crew:
    """LoaderThreads for the length of a test, and a wait for their end."""

    def __init__(self, read, count=2, ahead=1, limit=lambda: PATIENT):
        self.before = set(threading.enumerate())
        self.threads = LoaderThreads(read, count, ahead, limit)
        self.mine = set(threading.enumerate()) - self.before

    def __enter__(self):
        return self.threads

    def __exit__(self, *error):
        self.threads.close()
        for thread in self.mine:
            thread.join(PATIENT)
            assert not thread.is_alive()


@settings(max_examples=25)
@given(requests=st.integers(0, 40), threads=st.integers(1, 4), ahead=st.integers(0, 3))
def test_answers_come_in_the_order_of_the_requests(requests, threads, ahead):
    with Crew(lambda request: request * request, threads, ahead) as crew:
        for _ in range(2):
            assert list(crew.answers(range(requests))) == [each * each for each in range(requests)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_comes_at_its_place_and_the_next_epoch_is_read(error):
    def read(request):
        if request == 3:
            raise error("broken")
        return request

    with Crew(read) as crew:
        found = []
        with pytest.raises(error, match="broken"):
            found.extend(crew.answers(range(8)))
        assert found == [0, 1, 2]
        assert list(crew.answers([4, 5, 6])) == [4, 5, 6]


def test_an_epoch_left_early_leaves_nothing_for_the_next():
    read, go_on = [], threading.Event()

    def slowly(request):
        if request[0] == "left":
            go_on.wait(PATIENT)
        read.append(request)
        return request

    with Crew(slowly, count=1, ahead=5) as crew:
        left = crew.answers(("left", number) for number in counted())
        threading.Thread(target=go_on.set).start()
        assert next(left) == ("left", 0)
        go_on.clear()
        left.close()
        go_on.set()
        assert list(crew.answers([("next", 0), ("next", 1)])) == [("next", 0), ("next", 1)]


def test_a_reader_that_hangs_is_told_with_the_place_where_it_stands():
    go_on = threading.Event()

    def a_file_system_that_went_away(request):
        assert go_on.wait(PATIENT)

    with Crew(a_file_system_that_went_away, count=2, limit=lambda: 0.05) as crew:
        with pytest.raises(Hang, match="no batch came from 2 loader threads for 0 s") as hang:
            next(crew.answers(range(4)))
        go_on.set()
    assert hang.value.exit_code == 14
    assert hang.value.what.count("a_file_system_that_went_away") == 2
    assert "hasten-loader-0" in hang.value.what
    assert "file system" in hang.value.fix
