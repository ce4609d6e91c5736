import pytest
import torch

from hasten.data.options import LoaderOptions
from hasten.errors import PlanError
from loading import STAYING, Drawing, columns, content, epoch_of, indices, loader_of

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_settings_that_need_workers_are_refused_without_them():
    for options in [LoaderOptions(prefetch_factor=2), LoaderOptions(persistent_workers=True)]:
        with pytest.raises(PlanError, match="there are 0 loader workers"):
            loader_of(columns(4), options=options)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="has an accelerator")
def test_pinning_without_an_accelerator_is_left_out_and_said():
    loader = loader_of(columns(4), options=LoaderOptions(pin_memory=True))
    assert loader.notices == ("pin_memory is not used: there is no accelerator to copy to",)
    assert len(list(loader.epoch(0))) == 1


def test_a_closed_loader_is_closed():
    loader = loader_of(columns(4), options=STAYING)
    list(loader.epoch(0))
    loader.close()
    with pytest.raises(RuntimeError, match="was closed"):
        next(loader.epoch(1))


@pytest.mark.gpu
def test_columns_on_the_device_are_gathered_there_whatever_the_options_say():
    rows = torch.arange(10, device="cuda")
    loader = loader_of((rows,), options=LoaderOptions(workers=2, pin_memory=True))
    assert sorted(indices(loader.epoch(0))) == list(range(10))
    assert next(loader.epoch(1)).batch[0].device == rows.device
    assert loader.notices == ("train is on the device already: loader workers and pinned memory are not used for it",)


@pytest.mark.gpu
def test_pinned_batches_are_the_same_batches():
    expected = content(epoch_of(Drawing(13)))
    for options in [LoaderOptions(pin_memory=True), LoaderOptions(workers=2, pin_memory=True)]:
        found = epoch_of(Drawing(13), options=options)
        assert content(found) == expected
        assert all(one.batch[1].is_pinned() for one in found)
