"""Pictures in class folders: a batch has the same pixels, labels and crops, however and wherever it is read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, Subset, random_split

import hasten
from hasten.data.images.image_folder import IMAGENET_DEVIATION, IMAGENET_MEAN, ImageFolder
from hasten.data.loading.loader_options import LoaderOptions, Placement
from hasten.data.order.randomness import sample_seed
from hasten.data.sources.job_data import source_of
from hasten.errors import Misconfigured
from support.data.image_cases import jpeg, photos, write
from support.data.loaders import loader_of

SIZE = 24
DEVICE = Placement(accelerator=True)
DEVICE_TRANSFORM = Placement(accelerator=True, transforms=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def data(root):
    return ImageFolder(root, hasten.RandomResizedCrop(SIZE))


def epoch(data, number=0, **arguments):
    loader = loader_of(data, **arguments)
    found = [[part.clone() for part in one.batch] for one in loader.epoch(number)]
    loader.close()
    return found


def same(one, other):
    return len(one) == len(other) and all(
        torch.equal(left, right)
        for batch, wanted in zip(one, other, strict=True)
        for left, right in zip(batch, wanted, strict=True)
    )


def as_torchvision_gives(data, index, draws):
    """Its ImageFolder with the same crop, Pillow's BILINEAR, ToTensor and Normalize, in levels; and the label."""
    whole = Image.open(data.steady.path(index)).convert("RGB")
    box = data.view.box(whole.height, whole.width, draws)
    shown = whole.crop((box.left, box.top, box.left + box.width, box.top + box.height))
    shown = np.asarray(shown.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    return (shown[:, ::-1] if box.mirrored else shown), data.classes.index(Path(data.steady.path(index)).parent.name)


def levels(pictures):
    mean, deviation = (torch.tensor(each)[:, None, None] for each in (IMAGENET_MEAN, IMAGENET_DEVIATION))
    return ((pictures * deviation + mean) * 255).permute(0, 2, 3, 1).numpy()


def test_a_batch_is_what_torchvision_and_pillow_give_for_the_same_boxes(tmp_path):
    # None is large enough to be decoded at a part of its size.
    sizes = [(40, 47), (30, 20), (24, 24), (9, 60)]
    files = {f"c{each % 2}/{each}.jpg": jpeg(*size, seed=each) for each, size in enumerate(sizes)}
    data = ImageFolder(write(tmp_path, files), hasten.RandomResizedCrop(SIZE))
    loader = loader_of(data, batch_size=4, shuffle=False)
    for number in range(5):
        (one,) = loader.epoch(number)
        pictures, labels = one.batch
        assert (pictures.dtype, pictures.shape, labels.dtype) == (torch.float32, (4, 3, SIZE, SIZE), torch.int64)
        draws = data.draws(sample_seed(7, number, np.arange(4, dtype=np.uint64)))
        for index in range(4):
            wanted, label = as_torchvision_gives(data, index, draws[index])
            assert np.abs(levels(pictures)[index] - wanted).max() < 1.01
            assert labels[index] == label


@pytest.mark.trap(39)
def test_every_epoch_shows_other_crops_and_the_same_epoch_the_same(data):
    found = [epoch(data, number, shuffle=False) for number in (0, 1, 0)]
    assert same(found[0], found[2])
    for first, second in zip(found[0], found[1], strict=True):
        assert torch.equal(first[1], second[1])
        assert not any(torch.equal(one, other) for one, other in zip(first[0], second[0], strict=True))


@pytest.mark.trap(40)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    microbatch_size=st.none() | st.integers(1, 5),
    batch_size=st.integers(1, 13),
    threads=st.integers(1, 3),
    ahead=st.integers(1, 3),
)
def test_neither_threads_nor_the_cut_of_a_batch_change_a_sample(data, microbatch_size, batch_size, threads, ahead):
    options = LoaderOptions(workers=threads, worker_kind="threads", prefetch_factor=ahead)
    found = epoch(data, 3, batch_size=batch_size, microbatch_size=microbatch_size, options=options)
    (whole,) = epoch(data, 3, batch_size=12)
    images, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    assert torch.equal(images, whole[0])
    assert torch.equal(labels, whole[1])


@pytest.mark.parametrize("view", [24, hasten.CenterCrop], ids=["number", "class"])
def test_what_is_no_view_is_refused_when_it_is_given(root, view):
    with pytest.raises(Misconfigured, match="does not select a part of the image") as refusal:
        ImageFolder(root, view)
    assert "hasten.RandomResizedCrop(224)" in refusal.value.fix


def test_a_part_by_subset_or_random_split_is_read_as_the_whole(data):
    direct = epoch(data.subset([7, 2, 2, 5]), batch_size=4)
    assert same(epoch(Subset(data, [7, 2, 2, 5]), batch_size=4), direct)
    first, second = random_split(data, [0.5, 0.5], generator=torch.Generator().manual_seed(1))
    labels = sorted(label for part in (first, second) for _, found in epoch(part) for label in found.tolist())
    assert labels == [0] * 4 + [1] * 4 + [2] * 4
    deep = Subset(Subset(data, [7, 2, 5]), [2, 0])
    assert same(epoch(deep, batch_size=2), epoch(data.subset([5, 7]), batch_size=2))
    assert len(data.subset([7, 2, 5]).subset([2, 0])) == 2
    assert type(source_of(DataLoader(Subset(data, [4, 0])), field="train").dataset) is ImageFolder
    assert len(data) == 12


@pytest.mark.gpu
@pytest.mark.parametrize("where", [DEVICE, DEVICE_TRANSFORM])
def test_an_accelerator_finishes_to_the_same_pictures(data, where):
    source = source_of(data, field="train").prepared(where)
    for one, (pictures, labels) in zip(loader_of(data, placement=where).epoch(0), epoch(data), strict=True):
        found = source.finished(type(one.batch)(*(part.cuda() for part in one.batch)))
        assert np.abs(levels(found[0].cpu()) - levels(pictures)).max() < 1.5
        assert torch.equal(found[1].cpu(), labels)


class Kept:
    """What a cache of the steady part answers."""

    def __init__(self, files, wanted=None):
        self.files = files

    def __len__(self):
        return len(self.files)

    def view(self, index):
        height, width, found, label = self.files[index]
        for level in found:
            level.flags.writeable = False
        return np.int64(height), np.int64(width), list(found), label


@pytest.mark.trap(41)
@pytest.mark.parametrize("view", [hasten.RandomResizedCrop(SIZE), hasten.CenterCrop(SIZE)])
@pytest.mark.parametrize("where", [Placement(), DEVICE])
def test_a_cache_of_the_steady_part_changes_no_bit_and_freezes_no_crop(root, view, where):
    data = ImageFolder(root, view)
    cached = data.with_steady(Kept(data.steady))
    for number in range(2):
        assert same(epoch(cached, number, placement=where), epoch(data, number, placement=where))
    assert same(epoch(cached.subset([3, 1]), placement=where), epoch(data.subset([3, 1]), placement=where))
    part = data.subset([3, 1])
    assert same(epoch(part.with_steady(Kept(part.steady))), epoch(part))
    if view == hasten.RandomResizedCrop(SIZE):
        assert not torch.equal(epoch(cached, 0, shuffle=False)[0][0], epoch(cached, 1, shuffle=False)[0][0])
