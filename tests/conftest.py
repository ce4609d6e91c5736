"""Tests decide the same way everywhere: one compute thread, fixed seeds, no deadlines, examples that do not change."""

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("deterministic", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("deterministic")


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an accelerator"))


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
