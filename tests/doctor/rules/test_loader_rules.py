"""What the rules about loaders, samplers and copies of batches find, and what they must not."""

from __future__ import annotations

import pytest

from hasten.doctor.reading.source_code import Code
from hasten.doctor.rules import ALL
from support.doctor.snippets import assert_finds_what_is_marked

HEAD = """
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset, random_split
from torchvision import datasets

class Pictures(Dataset):
    def __init__(self, files, transform=None):
        self.files, self.transform = files, transform
    def __getitem__(self, index):
        return self.open(self.files[index])
    def open(self, file):
        return self.transform(Image.open(file))

class Rows(Dataset):
    def __init__(self, rows, transform=None):
        self.rows, self.transform = rows, transform
    def __getitem__(self, index):
        row = self.rows[index]
        return self.transform(row) if self.transform else row

class Enlarged(Rows):
    def __getitem__(self, index):
        return F.interpolate(self.rows[index][None], size=(224, 224))[0]

class Kept(Dataset):
    def __init__(self, rows):
        self.images = [Image.fromarray(row).convert("RGB") for row in rows]
    def __getitem__(self, index):
        return tensor_of(self.images[index].resize((64, 64)))

class Cropped(Rows):
    def __init__(self, rows):
        self.rows = F.interpolate(rows, size=(64, 64))
    def __getitem__(self, index):
        return self.rows[index][:, 1:].resize((64, 64))

"""
LOOP = """
for epoch in range(10):
    for x, y in loader:
        loss = model(x.cuda(), y)
        loss.backward()
        optimizer.step()
"""


def assert_finds(text: str, *codes: str) -> None:
    assert_finds_what_is_marked(HEAD + text, *codes)


def edits_of(text: str, code: str) -> list[list[str]]:
    """The arguments that a rule would add, of each finding."""
    rule = next(each for each in ALL if each.code == code)
    return [[edit.text for edit in found.edits] for found in rule.check(Code(HEAD + text))]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "made",
    [
        "loader = DataLoader(Pictures(files), 8, True)  # finds H101",
        "loader = DataLoader(datasets.MNIST('data'), shuffle=True, num_workers=0)  # finds H101",
        "whole = Pictures(files)\ntrain, test = random_split(whole, [8, 2])\nloader = DataLoader(train)  # finds H101",
        "loader = DataLoader(Rows(rows, flip))  # finds H101",
        "loader = DataLoader(Enlarged(rows))  # finds H101",
        "loader = DataLoader(Kept(rows))  # finds H101",
        "loader = DataLoader(Cropped(rows))",
        "from datasets import load_dataset as hub\nloader = DataLoader(hub('imdb').map(f)['train'])  # finds H101",
        "loader = DataLoader(Pictures(files), **options)",
        "options = {'num_workers': 2}\nloader = DataLoader(Pictures(files), **options)",
        "loader = DataLoader(TensorDataset(a, b))",
        "loader = DataLoader(Rows(rows))",
        "loader = DataLoader(somewhere.Data())",
        "from datasets import load_dataset as hub\nloader = DataLoader(hub('imdb', streaming=True))",
    ],
)
def test_a_loader_needs_workers_where_its_samples_are_work(made):
    assert_finds(made + LOOP, "H101")


@pytest.mark.parametrize(
    "made",
    [
        "loader = DataLoader(data, pin_memory=args.pin)",
        "loader = DataLoader(data, pin_memory=False)",
        "loader = DataLoader(TensorDataset(torch.zeros(8).cuda(), labels))",
        "torch.set_default_device('cuda')\nloader = DataLoader(data)",
        "def collate(rows):\n    return torch.stack(rows).to('cuda'), 0\nloader = DataLoader(data, collate_fn=collate)",
    ],
)
def test_what_is_pinned_or_on_the_device_or_a_choice_is_left_alone(made):
    assert_finds(made + LOOP, "H102")


def test_pinning_is_only_written_in_where_batches_go_to_a_device():
    assert edits_of("loader = DataLoader(data)" + LOOP, "H102") == [["pin_memory=True"]]
    for place in ("'cpu'", "where.it_goes()", "args.device"):
        assert edits_of("loader = DataLoader(data)" + LOOP.replace(".cuda()", f".to({place})"), "H102") == []


def test_workers_that_every_epoch_starts_again_should_stay():
    text = """
loader = DataLoader(data, num_workers=4)  # finds H103
held_out = DataLoader(other, num_workers=2)  # finds H103
def evaluate(model, loader):
    return [model(x) for x in loader]
"""
    assert_finds(text + LOOP + "    evaluate(model, held_out)\n", "H103")


@pytest.mark.parametrize(
    "made",
    [
        "loader = DataLoader(data, num_workers=args.workers)",
        "loader = DataLoader(data, num_workers=4, persistent_workers=args.stay)",
    ],
)
def test_without_workers_or_with_a_choice_nothing_is_started_again(made):
    assert_finds(made + LOOP, "H103")


def test_a_loader_that_is_read_once_or_made_in_each_epoch_starts_its_workers_once():
    assert_finds("loader = DataLoader(data, num_workers=4)" + LOOP.replace("10", "1"), "H103")
    made_inside = LOOP.replace("in loader", "in DataLoader(data, num_workers=4)")
    assert_finds(made_inside, "H103")
    assert_finds("loaders = {'a': DataLoader(data, num_workers=4)}" + LOOP.replace("loader", "loaders[epoch]"), "H103")


def test_an_option_that_may_be_zero_also_decides_whether_workers_stay():
    options = (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--jobs', default=4)\na = p.parse_args()\n"
    )
    assert edits_of(options + "loader = DataLoader(data, num_workers=a.jobs)" + LOOP, "H103") == [
        ["persistent_workers=a.jobs > 0"]
    ]
    assert edits_of("loader = DataLoader(data, num_workers=4)" + LOOP, "H103") == [["persistent_workers=True"]]


@pytest.mark.parametrize(
    "given",
    [
        "Pictures(files), 8)  # finds H104",
        "TensorDataset(a, b))  # finds H104",
        "datasets.CIFAR10('data'))  # finds H104",
        "Pictures(files), 8, False)",
        "Pictures(files), shuffle=args.shuffle)",
        "Pictures(files), batch_sampler=sampler)",
        "Pictures(files), **options)",
        "somewhere.Data())",
        "TensorDataset(torch.randn(80, 3), labels))",
        "TensorDataset(a, b), batch_size=len(a))",
        "hub('imdb', split='train').shuffle(seed=1))",
    ],
)
def test_training_in_the_order_of_the_data_is_found_where_nobody_chose_it(given):
    assert_finds(f"from datasets import load_dataset as hub\nloader = DataLoader({given}" + LOOP, "H104")


def test_a_loop_that_trains_only_when_told_may_evaluate_on_what_is_in_order():
    text = """
train = DataLoader(Pictures(a), shuffle=True)  # finds H101 H102
test = DataLoader(Pictures(b))
def run(loader, optimizer=None):
    for x in loader:
        loss = model(x.cuda())
        if optimizer is not None:
            loss.backward()
            optimizer.step()
for epoch in range(9):
    run(train, optimizer)
    run(test)
"""
    assert_finds(text, "H101", "H102", "H104")


def test_a_library_that_gives_back_another_loader_may_shuffle():
    wrapped = "loader = DataLoader(Rows(a))\nif private:\n    model, loader = engine.make_private(model, loader)\n"
    assert_finds(wrapped + LOOP, "H104")
    kept = "loader = DataLoader(Rows(a))  # finds H104\nmodel, loader = accelerator.prepare(model, loader)\n"
    assert_finds(kept + LOOP, "H104")


@pytest.mark.parametrize(
    ("sampler", "told"),
    [
        ("DistributedSampler(data) if world > 1 else None  # finds H105", "pass"),
        ("DistributedSampler(data)", "anything.set_epoch(epoch)"),
        ("DistributedSampler(data, shuffle=False)", "pass"),
        ("DistributedSampler(data, shuffle=args.shuffle)", "pass"),
    ],
)
def test_a_sampler_that_is_never_told_the_epoch_is_found_unless_it_is_in_order(sampler, told):
    made = f"sampler = {sampler}\nloader = DataLoader(data, sampler=sampler)"
    assert_finds(f"{made}{LOOP}    {told}\n", "H105")


@pytest.mark.parametrize(
    ("pinned", "copy"),
    [
        ("torch.cuda.is_available()", "model(x.cuda(), y)  # finds H204"),
        ("True", "model(x.cuda(non_blocking=True), y)"),
        ("True", "model(x.cuda(0, True), y)"),
        ("True", "model(x.to('cuda', **how), y)"),
        ("True", "model(x.float().cuda(), y)"),
    ],
)
def test_a_copy_from_pinned_memory_that_waits_is_found(pinned, copy):
    assert_finds(f"loader = DataLoader(data, pin_memory={pinned})" + LOOP.replace("model(x.cuda(), y)", copy), "H204")


def test_an_evaluation_may_wait_for_its_copies():
    text = """
loader = DataLoader(data, pin_memory=True)
@torch.no_grad()
def evaluate():
    for x, y in loader:
        print(model(x.cuda()))
def measure():
    for x, y in loader:
        print(model(x.cuda()))
"""
    assert_finds(text + LOOP.replace("x.cuda()", "x.cuda(non_blocking=True)"), "H204")


def test_only_what_is_surely_a_tensor_is_copied_without_waiting():
    text = "loader = DataLoader(data, pin_memory=True{})"
    assert edits_of(text.format("") + LOOP, "H204") == [["non_blocking=True"]]
    assert edits_of(text.format(", collate_fn=f") + LOOP, "H204") == [[]]
