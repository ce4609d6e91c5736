"""Pictures in class folders: a batch has the same pixels, labels and crops, however and wherever it is read."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, Subset, default_collate, random_split

import hasten
from data.pictures import file_of, image, jpeg, photos, write
from hasten.data.cache.cache_building import open_cache
from hasten.data.images.crops import Box, sufficient
from hasten.data.images.image_batches import Cropped, Shown
from hasten.data.images.image_folder import IMAGENET_DEVIATION, IMAGENET_MEAN, ImageFolder
from hasten.data.loading.batch_loader import EVALUATION_EPOCH, EvaluationLoader
from hasten.data.loading.loader_options import Placement
from hasten.data.order.randomness import reseed, sample_seed
from hasten.data.sources.augmented import seam_of
from hasten.data.sources.job_data import source_of
from hasten.data.workers.loader_threads import Threads
from hasten.errors import DataFailed
from support.data.loaders import HERE, ONE_WORKER, STAYING, TWO_WORKERS, loader_of

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

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
    return (shown[:, ::-1] if box.mirrored else shown), data.classes.index(data.steady.names[index].split("/")[0])


def levels(pictures):
    mean, deviation = (torch.tensor(each)[:, None, None] for each in (IMAGENET_MEAN, IMAGENET_DEVIATION))
    return ((pictures * deviation + mean) * 255).permute(0, 2, 3, 1).numpy()


# What a batch holds


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


def test_a_picture_decoded_at_a_part_of_its_size_shows_the_same_part_up_to_a_pixel_of_it(root):
    data = ImageFolder(root, hasten.RandomResizedCrop(SIZE))
    (one,) = loader_of(data, batch_size=12, shuffle=False).epoch(0)
    draws, seen = data.draws(sample_seed(7, 0, np.arange(12, dtype=np.uint64))), set()
    for index in range(12):
        whole = Image.open(data.steady.path(index))
        box = data.view.box(whole.height, whole.width, draws[index])
        denominator = sufficient(box.height, box.width, SIZE, (1, 2, 4, 8))
        top, left, height, width, mirrored = box.at(denominator)
        edges = (left, top, min(left + width, whole.width / denominator), min(top + height, whole.height / denominator))
        shown = whole.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=[each * denominator for each in edges])
        wanted = np.asarray(shown)[:, ::-1] if mirrored else np.asarray(shown)
        assert np.abs(levels(one.batch[0])[index] - wanted).mean() < 4
        assert 0 <= box.left - left * denominator < denominator
        assert 0 <= box.top - top * denominator < denominator
        seen.add(denominator)
    assert seen >= {1, 2, 4}


def test_classes_and_labels_are_in_sorted_order(data):
    assert data.classes == ["class0", "class1", "class2"]
    labels = [label for _, found in epoch(data, shuffle=False) for label in found.tolist()]
    assert labels == [0] * 4 + [1] * 4 + [2] * 4


def test_an_evaluation_shows_the_same_every_time(root):
    source = source_of(ImageFolder(root, hasten.CenterCrop(SIZE)), field="valid")
    loader = EvaluationLoader(source, batch_size=5, options=HERE, seed=7)
    first, second = ([[part.clone() for part in one.batch] for one in loader] for _ in range(2))
    assert same(first, second)
    assert EVALUATION_EPOCH < 0
    assert [label for _, found in first for label in found.tolist()] == [0] * 4 + [1] * 4 + [2] * 4


# The same, however it is read


@pytest.mark.trap(39)
def test_every_epoch_shows_other_crops_and_the_same_epoch_the_same(data):
    found = [epoch(data, number, shuffle=False) for number in (0, 1, 0)]
    assert same(found[0], found[2])
    for first, second in zip(found[0], found[1], strict=True):
        assert torch.equal(first[1], second[1])
        assert not any(torch.equal(one, other) for one, other in zip(first[0], second[0], strict=True))


@pytest.mark.trap(39)
def test_two_samples_of_one_file_show_different_crops(data):
    (one,) = epoch(data.subset([4, 4]), shuffle=False)
    assert not torch.equal(one[0][0], one[0][1])


@pytest.mark.trap(40)
@pytest.mark.parametrize("options", [ONE_WORKER, TWO_WORKERS, STAYING], ids=["one", "two", "staying"])
def test_worker_processes_change_no_bit(data, options):
    here = [epoch(data, number) for number in range(2)]
    loader = loader_of(data, options=options)
    for number in range(2):
        assert same([[part.clone() for part in one.batch] for one in loader.epoch(number)], here[number])
    loader.close()


@pytest.mark.trap(40)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    microbatch_size=st.none() | st.integers(1, 5),
    batch_size=st.integers(1, 13),
    threads=st.integers(1, 3),
    ahead=st.integers(0, 3),
)
def test_neither_threads_nor_the_cut_of_a_batch_change_a_sample(data, microbatch_size, batch_size, threads, ahead):
    loader = loader_of(data, batch_size=batch_size, microbatch_size=microbatch_size)
    requests = list(loader._requests(3, 0))
    (whole,) = epoch(data, 3, batch_size=12)
    order = [int(index) for request in requests for index in request.indices]
    crew = Threads(loader._feed._reader.__getitems__, threads, ahead, lambda: 60.0)
    found = list(crew.answers(requests))
    crew.close()
    pictures, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    (all_at_once,) = loader_of(data, batch_size=12)._requests(3, 0)
    places = [all_at_once.indices.tolist().index(index) for index in order]
    assert torch.equal(pictures, whole[0][places])
    assert torch.equal(labels, whole[1][places])


def test_ranks_read_their_shares_of_the_same_batches(data):
    alone = epoch(data, batch_size=6)
    ranks = [epoch(data, batch_size=6, rank=rank, world_size=2) for rank in range(2)]
    together = [[torch.cat(parts) for parts in zip(*shares, strict=True)] for shares in zip(*ranks, strict=True)]
    assert same(together, alone)


def test_a_kept_batch_is_not_written_to_again(data):
    loader = loader_of(data, batch_size=3)
    kept = [one.batch for one in loader.epoch(0)]
    before = [[part.clone() for part in batch] for batch in kept]
    for number in range(1, 3):
        for _ in loader.epoch(number):
            pass
    assert same(kept, before)
    assert len({batch[0].data_ptr() for batch in kept}) == 4


def test_batches_that_nobody_keeps_use_the_same_memory(data):
    loader = loader_of(data, batch_size=3)
    places = set()
    for number in range(3):
        for one in loader.epoch(number):
            places.add(one.batch[0].data_ptr())
            del one
    assert len(places) <= 2  # one is read while the other is looked at


# Parts of it


def test_a_part_by_subset_or_random_split_is_read_as_the_whole(data):
    direct = epoch(data.subset([7, 2, 2, 5]), batch_size=4)
    assert same(epoch(Subset(data, [7, 2, 2, 5]), batch_size=4), direct)
    first, second = random_split(data, [0.5, 0.5], generator=torch.Generator().manual_seed(1))
    labels = sorted(label for part in (first, second) for _, found in epoch(part) for label in found.tolist())
    assert labels == [0] * 4 + [1] * 4 + [2] * 4
    deep = Subset(Subset(data, [7, 2, 5]), [2, 0])
    assert same(epoch(deep, batch_size=2), epoch(data.subset([5, 7]), batch_size=2))
    assert len(data.subset([7, 2, 5]).subset([2, 0])) == 2
    assert len(data) == 12


def test_a_part_counts_from_the_end_and_holds_nothing_that_is_not_there(data):
    assert same(epoch(data.subset([-1, 0])), epoch(data.subset([11, 0])))
    for wrong in ([0, 12], [0, 0.5]):
        with pytest.raises(DataFailed, match="a part of a folder of pictures gives"):
            data.subset(wrong)


def test_a_part_of_a_part_is_counted_from_the_part(data):
    chosen = data.subset([7, 2, 5]).subset([2, 0])
    labels = [found.tolist() for _, found in epoch(chosen, shuffle=False, batch_size=2)]
    assert labels == [[1, 1]]
    assert [chosen.steady.names[int(row)] for row in chosen._chosen] == [data.steady.names[5], data.steady.names[7]]


# On a device


@pytest.mark.parametrize(("where", "form"), [(DEVICE, Shown), (DEVICE_TRANSFORM, Cropped)])
@pytest.mark.parametrize("options", [HERE, ONE_WORKER], ids=["here", "worker"])
def test_what_is_finished_on_a_device_is_the_same_within_rounding(data, where, form, options):
    loader = loader_of(data, placement=where, options=options)
    wanted = epoch(data)
    source = source_of(data, field="train")
    for one, (pictures, labels) in zip(loader.epoch(0), wanted, strict=True):
        assert type(one.batch) is form
        assert one.batch[0].dtype == torch.uint8
        found = source.prepared(where).finished(one.batch)
        assert (found[0].dtype, found[0].shape) == (torch.float32, pictures.shape)
        assert np.abs(levels(found[0]) - levels(pictures)).max() < (1.01 if form is Cropped else 0.001)
        assert torch.equal(found[1], labels)
    loader.close()


def test_the_layout_in_memory_changes_no_number(data):
    loader = loader_of(data, placement=Placement(channels_last=True))
    for one, (pictures, labels) in zip(loader.epoch(0), epoch(data), strict=True):
        assert one.batch[0].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(one.batch[0], pictures)
        assert torch.equal(one.batch[1], labels)


def test_finishing_leaves_an_ordinary_batch_alone(data):
    batch = (torch.zeros(2), torch.zeros(2))
    assert source_of(data, field="train").finished(batch) is batch


@pytest.mark.gpu
@pytest.mark.parametrize("where", [DEVICE, DEVICE_TRANSFORM])
def test_an_accelerator_finishes_to_the_same_pictures(data, where):
    source = source_of(data, field="train").prepared(where)
    for one, (pictures, labels) in zip(loader_of(data, placement=where).epoch(0), epoch(data), strict=True):
        found = source.finished(type(one.batch)(*(part.cuda() for part in one.batch)))
        assert np.abs(levels(found[0].cpu()) - levels(pictures)).max() < 1.5
        assert torch.equal(found[1].cpu(), labels)


# With what users bring


def test_a_collate_of_the_users_gets_samples_of_their_own_random_numbers(data):
    def collate(samples):
        return [torch.stack([picture for picture, _ in samples]), torch.tensor([label for _, label in samples])]

    found = epoch(data, collate=collate, shuffle=False)
    assert same(epoch(data, collate=collate, shuffle=False, options=TWO_WORKERS), found)
    reseed(sample_seed(7, 0, 0))
    assert torch.equal(found[0][0][0], data[0][0])


def test_another_loader_can_read_it(data):
    found = [label for _, labels in DataLoader(data, batch_size=5) for label in labels.tolist()]
    assert found == [0] * 4 + [1] * 4 + [2] * 4
    picture, label = data[-1]
    assert (picture.shape, label) == ((3, SIZE, SIZE), 2)
    assert not torch.equal(data[3][0], data[3][0])
    assert default_collate([data[0], data[1]])[0].shape == (2, 3, SIZE, SIZE)


def test_a_view_without_random_numbers_draws_none_so_its_pictures_can_be_a_steady_part(root, tmp_path):
    middle = ImageFolder(root, hasten.CenterCrop(SIZE))
    cached = open_cache(seam_of(hasten.Augmented(middle, tuple)).steady, tmp_path)
    assert all(torch.equal(cached[index][0], middle[index][0]) for index in range(len(middle)))


def test_a_folder_in_the_users_home_is_found(root, monkeypatch):
    monkeypatch.setenv("HOME", str(root.parent))
    assert len(ImageFolder(f"~/{root.name}", hasten.CenterCrop(SIZE))) == 12


def test_a_view_of_the_users_own_decides_what_is_shown(root):
    class Corner:
        size, draws = SIZE, 1

        def box(self, height, width, draws):
            side = max(1, int(min(height, width) * (0.5 + draws[0] / 2)))
            return Box(0, 0, side, side)

        def smallest(self, height, width):
            side = max(1, int(min(height, width) * 0.5))
            return side, side

    found = epoch(ImageFolder(root, Corner()))
    assert sum(len(labels) for _, labels in found) == 12


def test_it_can_be_sent_to_a_worker_that_starts_anew(data):
    sent = pickle.loads(pickle.dumps(data))  # noqa: S301
    assert same(epoch(sent), epoch(data))


def test_forms_for_devices_do_not_change_the_data_set_they_are_made_of(data):
    before = copy.copy(data.__dict__)
    data.placed(DEVICE), data.subset([1]), data.with_steady(None)
    assert data.__dict__ == before


# From a cache


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


@pytest.mark.trap(41)
@pytest.mark.parametrize("options", [HERE, TWO_WORKERS], ids=["here", "workers"])
def test_the_cache_on_disk_changes_no_bit(data, tmp_path, options):
    cached = data.with_steady(open_cache(data.steady, tmp_path))
    for number in range(2):
        assert same(epoch(cached, number, options=options), epoch(data, number))


def test_pictures_of_other_formats_lie_beside_jpegs(tmp_path):
    stored = io.BytesIO(file_of(image(40, 30, "RGBA"), "PNG"))
    data = ImageFolder(
        write(tmp_path, {"c/0.png": stored.getvalue(), "c/1.jpg": file_of(image(40, 30, "CMYK"), "JPEG")}),
        hasten.CenterCrop(SIZE),
    )
    (one,) = epoch(data, shuffle=False)
    for index in range(2):
        assert np.abs(levels(one[0])[index] - as_torchvision_gives(data, index, [])[0]).max() < 1.01
