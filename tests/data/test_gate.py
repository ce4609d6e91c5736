"""Nobody goes through a gate that is shut, and it opens again however that ends, in whichever process."""

import signal
import threading
from contextlib import ExitStack, contextmanager

import pytest

from hasten.data.workers.gate import Gate
from hasten.data.workers.loader_threads import Threads, threads_resting
from support.checkpoint.file_faults import ended, started

PATIENT = 60.0  # seconds: longer than any test


def passes(gate, seconds):
    """Whether a thread comes through within so many seconds."""

    def go():
        with gate:
            through.set()

    through = threading.Event()
    threading.Thread(target=go, daemon=True).start()
    return through.wait(seconds)


@contextmanager
def one_waits_outside(gate):
    """A thread that came to the gate and has not gone through; it does afterwards."""

    def go():
        with gate:
            through.set()

    through = threading.Event()
    threading.Thread(target=go, daemon=True).start()
    while not gate._changed._waiters and not through.is_set():
        pass
    assert not through.is_set()
    yield
    assert through.wait(5)


def test_who_comes_while_it_is_shut_waits_outside():
    gate = Gate()
    with ExitStack() as stack, gate.shut(PATIENT) as outside:
        assert outside
        stack.enter_context(one_waits_outside(gate))


def test_it_is_shut_until_the_last_of_those_who_shut_it_is_done():
    gate = Gate()
    with ExitStack() as stack, gate.shut(PATIENT):
        with gate.shut(PATIENT):
            pass
        stack.enter_context(one_waits_outside(gate))


def test_who_is_interrupted_while_waiting_leaves_it_open():
    gate, main = Gate(), threading.main_thread().ident

    def interrupt():
        waits = False
        while not waits:
            with gate._changed:  # free only before it is shut and while the other waits
                waits = bool(gate._shut)
        signal.pthread_kill(main, signal.SIGINT)

    with gate:
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt), gate.shut(PATIENT):
            raise AssertionError("one reads")
        interrupting.join()
    assert passes(gate, 5)


def test_an_error_while_it_is_shut_leaves_it_open():
    gate = Gate()
    with pytest.raises(OSError, match="no process"), gate.shut(PATIENT):
        raise OSError("no process could be forked")
    assert passes(gate, 5)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_while_it_is_shut_reads_with_threads_of_its_own():
    def read():
        with threads_resting():  # its threads are none of the parent's
            pass
        threads = Threads(lambda request: request, count=2, ahead=0, limit=lambda: 5.0)
        return [*threads.answers(range(4))] == [0, 1, 2, 3]

    with threads_resting():
        child = started(read)
    assert ended(child)
