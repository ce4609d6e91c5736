"""Techniques of scripts: what they write into a source, what they refuse, and that the losses stay."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hasten.doctor.reading.source_code import Code
from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.facts.plan import Plan
from hasten.facts.scripts.script_places import ScriptPlaces
from hasten.scripts.edits.edited_source import edited_source
from hasten.scripts.edits.source_places import place_of
from hasten.scripts.edits.technique_edits import edits_of
from hasten.scripts.running.program import Program
from hasten.scripts.techniques import (
    OF_SCRIPTS,
    RunningLoader,
    batches_by_index,
    cache_decoded_images,
    evaluation_without_gradients,
    filling_steps,
)
from hasten.scripts.trials.script_arms import observe, script_arms
from hasten.tuning.search.candidates import plan_of
from hasten.tuning.trials.other_programs import OtherPrograms

FILE = "train.py"
PHOTOS = dedent('''\
    """Trains on photographs."""
    import random

    from PIL import Image
    from torch.utils.data import Dataset

    SIDE = 8


    # All photographs of a folder.
    class Photos(Dataset):
        def __init__(self, paths):
            self.paths = paths

        def __getitem__(self, index):
            image = Image.open(self.paths[index]).convert('RGB')  # slow
            return image.resize((SIDE, SIDE))
''')
ROWS = dedent("""\
    from torch.utils.data import DataLoader, TensorDataset


    def loader_of(rows, labels, size):
        loader = DataLoader(TensorDataset(rows, labels), batch_size=size, shuffle=True)  # of rows
        return loader
""")
EVALUATION = dedent("""\
    import torch
    from torch.utils.data import DataLoader


    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()


    def evaluate(model, loader):
        model.eval()
        right = 0
        for x, y in loader:
            # rows of the largest score
            right += (model(x).argmax(1) == y).sum().item()
        return right
""")


def edited(technique: str, source: str) -> str:
    code = Code(source)
    loaders = [call for call in code.all(ast.Call) if ast.unparse(call.func).endswith("DataLoader")]
    places = ScriptPlaces(
        script=FILE,
        sources={},
        device="cpu",
        optimizers=(),
        loader=place_of(loaders[0], FILE) if loaders else None,
        decodings=cache_decoded_images.decodings(code, FILE),
        evaluations=evaluation_without_gradients.evaluations(code, FILE),
    )
    choices = [Choice(technique=technique, value=True)]
    return edited_source(source, edits_of(choices, places, lambda file: source))


# ── images ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_decoded_image_is_cached_by_a_function_before_the_data_set():
    function = (
        "@functools.lru_cache(maxsize=None)\ndef decoded(path):\n    return Image.open(path).convert('RGB')\n\n\n"
    )
    expected = PHOTOS.replace("import random\n", "import functools\nimport random\n")
    expected = expected.replace("# All photographs", f"{function}# All photographs")
    expected = expected.replace("= Image.open(self.paths[index]).convert('RGB')", "= decoded(self.paths[index])")
    assert edited("cache_decoded_images", PHOTOS) == expected


def test_the_function_has_a_name_that_the_file_does_not_use():
    assert "def decoded_image(path):" in edited("cache_decoded_images", PHOTOS.replace("SIDE", "decoded"))


def test_a_function_that_the_data_set_calls_is_found():
    source = PHOTOS.replace("image = Image.open(self.paths[index]).convert('RGB')  # slow", "image = load(self, index)")
    source += "\n\ndef load(photos, index):\n    return Image.open(photos.paths[index]).convert('L')\n"
    assert "    return decoded(photos.paths[index])\n" in edited("cache_decoded_images", source)


@pytest.mark.parametrize("second", ["image = image.convert('RGB')", "rgb = self.crop(image.convert('RGB'))"])
def test_an_image_that_the_next_statement_converts_is_cached(second):
    source = PHOTOS.replace("(self.paths[index]).convert('RGB')", "(self.paths[index])")
    source = source.replace("return image.resize((", f"{second}\n        return rgb.resize((")
    expected = f"        image = decoded(self.paths[index])  # slow\n        {second}\n"
    assert expected in edited("cache_decoded_images", source)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("image.resize(", "image.thumbnail((4, 4)) or image.resize(", "line 17 draws on images in place"),
        ("self.paths[index])", "open(self.paths[index], 'rb'))", "more than the name of a file"),
        ("image = Image.open(self.paths[index])", "with open(index) as f: image = Image.open(f)", "more than the name"),
        ("convert('RGB')", "convert(self.mode)", "does not convert all images to one mode"),
        ("]).convert('RGB')", "])\n        rgb = image.convert('RGB')", "no data set of the script calls"),
        ("Image.open(self.paths[index]).convert('RGB')", "self.paths[index]", "no data set of the script calls"),
        (").convert('RGB')", ")\n        image = image.convert('L') if index else image", "no data set of the script"),
        (").convert('RGB')", ")\n        image = blend(image, image.convert('L'))", "no data set of the script calls"),
    ],
)
def test_images_that_cannot_be_kept_are_refused(before, after, reason):
    with pytest.raises(PlanError, match=reason):
        edited("cache_decoded_images", PHOTOS.replace(before, after))


class Files(Dataset):
    def __init__(self, folder: Path, samples: int) -> None:
        self.path, self.samples = folder / "photo.png", samples
        Image.fromarray(np.zeros((10, 20, 3), dtype=np.uint8)).save(self.path)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.array(Image.open(self.path).convert("RGB")))


@pytest.mark.parametrize(
    ("epochs", "memory_bytes", "workers", "reason"),
    [
        (3, 4 * 600 * 50, 0, ""),
        (3, 4 * 600 * 50 - 4, 0, "more than a quarter of the machine's memory"),
        (3, 4 * 600 * 50, 2, "in each of its workers"),
        (1, 4 * 600 * 50, 0, "one epoch"),
    ],
)
def test_decoded_images_have_to_fit_into_memory(tmp_path, epochs, memory_bytes, workers, reason):
    loader = DataLoader(Files(tmp_path, 50), num_workers=workers)
    found = cache_decoded_images.why_not(RunningLoader(loader=loader, epochs=epochs, memory_bytes=memory_bytes))
    assert reason in found
    assert bool(reason) == bool(found)


# ── batches ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_is_gathered_by_one_index():
    expected = ROWS.replace("import DataLoader, Tensor", "import BatchSampler, DataLoader, RandomSampler, Tensor")
    made = "    loader = DataLoader(TensorDataset(rows, labels), batch_size=size, shuffle=True)"
    lines = (
        "    dataset = TensorDataset(rows, labels)\n"
        "    batch_sampler = BatchSampler(RandomSampler(dataset), batch_size=size, drop_last=False)\n"
        "    loader = DataLoader(dataset, batch_size=None, sampler=batch_sampler)"
    )
    assert edited("batches_by_index", ROWS) == expected.replace(made, lines)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("shuffle=True", "sampler=own", "a sampler of the script's own"),
        ("shuffle=True", "collate_fn=own", "a collate_fn of the script's own"),
        ("shuffle=True", "shuffle=size > 1", "shuffles by a condition"),
        ("shuffle=True", "**more", "not written there"),
        ("batch_size=size, ", "", "a batch is one sample"),
        ("return loader", "return loader, loader.batch_size", r"line 6 reads loader.batch_size"),
        ("loader = DataLoader", "loader = lambda: DataLoader", "within another statement"),
    ],
)
def test_a_loader_with_batches_of_another_kind_is_refused(before, after, reason):
    with pytest.raises(PlanError, match=reason):
        edited("batches_by_index", ROWS.replace(before, after))


@pytest.mark.parametrize("shuffle", ["shuffle=True", "shuffle=True, generator=own", "drop_last=True", "shuffle=False"])
def test_the_same_batches_come_in_the_same_order(shuffle):
    source = ROWS.replace("shuffle=True", shuffle).replace("labels, size", "labels, size, own")
    batches = list[list[list[torch.Tensor]]]()
    for text in (source, edited("batches_by_index", source)):
        made: dict[str, Any] = {}
        exec(text, made)
        own, loader_of = torch.Generator().manual_seed(1), made["loader_of"]
        torch.manual_seed(0)
        loader = loader_of(torch.randn(50, 3), torch.arange(50), 8, own)
        batches.append([batch for _ in range(2) for batch in loader])
    assert len(batches[0]) == len(batches[1])
    for one, other in zip(*batches, strict=True):
        assert [type(one), len(one)] == [type(other), len(other)]
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one, other, strict=True))


class Indexed(Dataset):
    def __init__(self) -> None:
        self.rows, self.labels = torch.randn(9, 2), np.arange(9)

    def __getitem__(self, index: int):
        return self.rows[index], self.labels[index]

    def __len__(self) -> int:
        return len(self.rows)


class Listed(Indexed):
    def __init__(self) -> None:
        super().__init__()
        self.labels = [*range(9)]


class Scaled(Indexed):
    def __getitem__(self, index: int):
        return self.rows[index] * 2, self.labels[index]


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (TensorDataset(torch.ones(9)), ""),
        (torch.utils.data.Subset(Indexed(), [1, 4, 5]), ""),
        (Indexed(), ""),
        (Listed(), "does not give their batch"),
        (Scaled(), "does more for a sample"),
    ],
)
def test_only_a_data_set_of_tensors_or_arrays_is_gathered(dataset, reason):
    loader = DataLoader(dataset, batch_size=2)
    found = batches_by_index.why_not(RunningLoader(loader=loader, epochs=3, memory_bytes=1))
    assert reason in found
    assert bool(reason) == bool(found)


def test_a_loader_from_which_a_library_makes_another_one_is_refused():
    loader = DataLoader(Indexed(), batch_size=2)
    running = RunningLoader(loader=loader, rebuilt_by="accelerate", epochs=3, memory_bytes=1)
    assert batches_by_index.why_not(running).startswith("accelerate makes another loader")


def test_another_loader_that_the_same_call_makes_is_gathered_too_or_refused():
    loader = DataLoader(Indexed(), batch_size=2)
    for dataset, reason in ((Indexed(), ""), (Scaled(), "the same line makes another loader: Scaled does more")):
        alike = [DataLoader(dataset, batch_size=2)]
        found = batches_by_index.why_not(RunningLoader(loader=loader, alike=alike, epochs=3, memory_bytes=1))
        assert found.startswith(reason)
        assert bool(reason) == bool(found)


# ── evaluation ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_function_that_only_evaluates_is_decorated():
    expected = EVALUATION.replace("def evaluate", "@torch.no_grad()\ndef evaluate")
    assert edited("evaluation_without_gradients", EVALUATION) == expected


def test_a_loop_in_a_function_that_trains_is_wrapped():
    source = EVALUATION.replace("    right = 0\n", "    train(model, loader, own)\n    right = 0\n")
    before = source[source.rindex("    for x") : source.index("    return right")]
    after = "".join(f"    {line}\n" for line in ["with torch.no_grad():", *before.splitlines()])
    assert edited("evaluation_without_gradients", source) == source.replace(before, after)


def test_a_comprehension_that_evaluates_is_wrapped_with_its_statement():
    loop = EVALUATION[EVALUATION.index("    right = 0") : EVALUATION.index("    return right")]
    line = "right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)"
    source = EVALUATION.replace(loop, f"    train(model, loader, own)\n    {line}\n")
    expected = source.replace(f"    {line}", f"    with torch.no_grad():\n        {line}")
    assert edited("evaluation_without_gradients", source) == expected


def test_an_evaluation_without_gradients_stays():
    with pytest.raises(PlanError, match="no evaluation loop"):
        edited("evaluation_without_gradients", EVALUATION.replace("def eval", "@torch.no_grad()\ndef eval"))


# ── running scripts ─────────────────────────────────────────────────────────────────────────────────────────────────

TRAINING = dedent("""\
    import random

    import numpy as np
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset, TensorDataset


    class Photos(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            image = Image.open(f"{index}.png").convert("RGB")
            if random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            return torch.from_numpy(np.array(image)).flatten() / 255, index % 2


    torch.manual_seed(0)
    random.seed(0)
    DATA
    model = torch.nn.Linear(48, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
""")
LOADERS = {
    "cache_decoded_images": "loader = DataLoader(Photos(), batch_size=10, shuffle=True)",
    "batches_by_index": "loader = DataLoader(TensorDataset(torch.randn(40, 48), torch.arange(40) % 2), 10, True)",
}


@pytest.mark.parametrize("technique", LOADERS)
def test_the_losses_of_a_running_script_are_the_same_to_the_bit(technique, tmp_path, monkeypatch):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / FILE).write_text(TRAINING.replace("DATA", LOADERS[technique]))
    for number in range(40):
        pixels = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    monkeypatch.chdir(folder)
    program, losses = Program(name=FILE), list[list[float]]()
    seen = observe(program)
    arms = script_arms(program, seen, tmp_path, OtherPrograms(None))
    planned = plan_of([Choice(technique=technique, value=True)])
    for plan in (Plan(), planned):
        with arms.start("any", plan) as arm:
            proposed = [each["technique"] for each in arm.ask("survey")["proposed"]]
            arm.window(1)
            arm.window(4)
        with arms.start("any", plan) as arm:
            losses.append(arm.ask("train", seed=0, steps=12, metric=None, seconds=60.0)["losses"])
        assert technique in proposed or plan.choices
    assert filling_steps(planned, seen) == (4 if technique == "cache_decoded_images" else 0)
    assert len(losses[0]) == 12
    assert losses[0] == losses[1]


ONE_LINE_FOR_TWO = """
    class Scaled(TensorDataset):
        def __getitem__(self, index):
            return tuple(each * 2 for each in super().__getitem__(index))
    def loader_of(data):
        return DataLoader(data, batch_size=10)
    tensors = torch.randn(40, 48), torch.arange(40) % 2
    loader, valid_loader = loader_of(TensorDataset(*tensors)), loader_of(Scaled(*tensors))
"""


@pytest.mark.proof
def test_a_line_that_makes_the_loader_of_the_evaluation_too_is_found(tmp_path, monkeypatch):
    Path(tmp_path, FILE).write_text(TRAINING.replace("DATA", dedent(ONE_LINE_FOR_TWO)))
    monkeypatch.chdir(tmp_path)
    program = Program(name=FILE)
    with script_arms(program, observe(program), tmp_path, OtherPrograms(None)).start("any", Plan()) as arm:
        assert "Scaled does more for a sample" in arm.ask("survey")["refused"]["batches_by_index"]


def test_each_has_a_page():
    for technique in OF_SCRIPTS:
        assert technique.headline.endswith(".")
        assert "What it changes:" in technique.manual
