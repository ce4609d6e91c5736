"""Tests decide the same way everywhere: one compute thread, fixed seeds, no deadlines, examples that do not change."""

import gc
import multiprocessing
import os
import signal
import sys

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("deterministic", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("deterministic")

# Of many processes that begin as new ones, most of the time goes to loading these: the forkserver loads them once.
multiprocessing.set_forkserver_preload(["hasten.entry", "torch._dynamo", "torchmetrics"])

# With a CUDA build of torch and no GPU, FakeTensorMode before the first backward pass makes autograd start a thread for
# the GPU. A process that a test forks afterwards could not run a backward pass.
if not torch.cuda.is_available():
    torch.ones((), requires_grad=True).backward()

_BEGUN: set[object] = set()  # modules of tests


def pytest_configure():
    """A shell lets what it starts in the background ignore Ctrl-C, and nohup SIGHUP; so would all that tests start."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One more than there are cores, as some tests wait for processes that do, where the environment says no number."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an accelerator"))


def pytest_collection_finish():
    """All that is there now stays to the end; left to the collector, each gc.collect() of a test would walk it."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(nextitem):
    """What a module of tests has loaded stays as well."""
    if nextitem is not None and nextitem.path not in _BEGUN:
        _BEGUN.add(nextitem.path)
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def caches_of_its_own(tmp_path_factory, worker_id):
    """What tests compile and keep stays out of the user's caches, and what lies there decides no test. Processes that
    test side by side share it, so that an operator is compiled once."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str((base if worker_id == "master" else base.parent) / "caches"))
        yield


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Here, and in each process that a test begins: beside other tests, more of them wait for each other."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def switching_all_the_time():
    """Threads take turns after every few operations, so that what depends on their order is seen."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(params=["forkserver", pytest.param("spawn", marks=pytest.mark.proof)])
def other_start(request):
    """The ways in which workers start that are not Linux's own."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)
