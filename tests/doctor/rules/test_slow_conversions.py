"""Rules about arrays that become tensors, and numbers that are read in every step: what is found, and what is fixed."""

from __future__ import annotations

from textwrap import dedent, indent

import numpy as np
import pytest
import torch

from hasten.doctor.lint.fixes import mend
from hasten.doctor.rules import ALL
from support.doctor.snippets import assert_finds_what_is_marked

IMPORTS = "import torch, numpy as np\n"
ROWS = """
import torch, numpy as np
images, labels = np.zeros((9, 4)), given
def batch(index, samples):
    rows = []
    for each in index:
        rows.append(images[each] / 255)
    others = []
    for each in index:
        others.append(labels[each])
    x = TENSOR
class Data:
    def __init__(self):
        self.images = np.asarray(images)
    def __getitem__(self, index):
        frames = [self.images[index + n].astype(np.float32) for n in range(3)]
        return torch.tensor(frames, dtype=torch.float32)  # finds H208
"""


def mended(tmp_path, text: str, code: str) -> str:
    """With all that --fix may do for one rule; the same text where it does nothing."""
    path = tmp_path / "train.py"
    path.write_text(text)
    found = mend(path, [rule for rule in ALL if rule.code == code])
    return text if found is None else found.after


@pytest.mark.parametrize(
    "tensor",
    [
        "torch.tensor(rows)  # finds H208",
        "torch.tensor([images[n] for n in index])  # finds H208",
        "torch.tensor([row for row in images])  # finds H208",
        "torch.as_tensor([np.array(each) for each in samples])  # finds H208",
        "torch.tensor([images[0], images[1]])  # finds H208",
        "torch.FloatTensor(rows)  # finds H208",
        "torch.Tensor([np.array(each) for each in samples])  # finds H208",
        "torch.FloatTensor([[1.0, 2.0], [3.0, 4.0]])",
        "torch.LongTensor([len(each) for each in samples])",
        "torch.FloatTensor([np.array(each).mean() for each in samples])",
        "torch.FloatTensor(np.array(rows))",
        "torch.FloatTensor(3, 4)",
        "torch.tensor(np.array(rows))",
        "torch.tensor(others)",
        "torch.tensor([each for each in samples])",
        "torch.tensor([1, 2])",
        "torch.tensor([])",
        "torch.tensor(labels[0])",
    ],
)
def test_a_list_of_arrays_is_found(tensor):
    assert_finds_what_is_marked(ROWS.replace("TENSOR", tensor), "H208")


def test_a_list_of_arrays_is_made_one_array(tmp_path):
    text = ROWS.replace("TENSOR", "torch.tensor(rows)")
    expected = text.replace("tensor(rows)", "tensor(np.array(rows))").replace("(frames,", "(np.array(frames),")
    assert mended(tmp_path, text, "H208") == expected


def test_without_a_name_for_numpy_nothing_is_fixed(tmp_path):
    text = "import torch\nfrom numpy import zeros\nx = torch.tensor([zeros(3), zeros(3)])  # finds H208\n"
    assert_finds_what_is_marked(text, "H208")
    assert mended(tmp_path, text, "H208") == text


@pytest.mark.filterwarnings("ignore:Creating a tensor from a list")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("options", [{}, {"dtype": torch.float32}])
def test_one_array_has_the_numbers_of_the_list(dtype, options):
    rows = [np.random.default_rng(n).standard_normal((3, 2)).astype(dtype) for n in range(4)]
    before = torch.tensor(rows, **options)
    after = torch.tensor(np.array(rows), **options)
    assert before.dtype == after.dtype
    assert torch.equal(before, after)
    assert torch.equal(torch.FloatTensor(rows), torch.FloatTensor(np.array(rows)))


SHARED = """
def made(given, kept):
    pixels = np.array(given)
    LINES
"""


@pytest.mark.parametrize(
    ("lines", "is_alone"),
    [
        ("return torch.tensor(pixels)", True),
        ("pixels /= 255\nprint(pixels.shape)\nreturn torch.tensor(pixels)", True),
        ("pixels = torch.tensor(pixels)\nreturn pixels + pixels", True),
        ("return torch.tensor(pixels[1:])", True),
        ("return torch.tensor(np.log(np.asarray(pixels)))", True),
        ("kept.append(pixels)\nreturn torch.tensor(pixels)", False),
        ("x = torch.tensor(pixels)\npixels += 1\nreturn x", False),
        ("x = torch.tensor(pixels)\nreturn x, pixels", False),
        ("return [torch.tensor(pixels) for _ in range(2)]", False),
        ("for each in kept:\n    each.add(torch.tensor(pixels))", False),
        ("pixels = np.asarray(kept)\nreturn torch.tensor(pixels)", False),
        ("return torch.tensor(pixels), lambda: pixels", False),
        ("return torch.tensor(np.asarray(given))", False),
    ],
)
def test_only_an_array_that_nothing_else_refers_to_gives_its_memory_away(tmp_path, lines, is_alone):
    text = IMPORTS + SHARED.replace("    LINES", indent(lines, "    "))
    expected = text.replace("torch.tensor(", "torch.as_tensor(") if is_alone else text
    assert mended(tmp_path, text, "H202") == expected


SUMS = dedent("""\
    import torch
    from torch import nn

    def train(model, loader, device, log):
        total, right, seen = 0.0, 0, 0
        for n, (x, y) in enumerate(loader):
            x, y = x.cuda(), y.cuda()
            output = model(x)
            loss = nn.functional.cross_entropy(output, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * x.size(0)
            right += (output.argmax(1) == y).sum().item()
            seen += y.size(0)
            if n % 100 == 99:
                print(f"{n}: {total / seen:.3f}")
                total = 0.0
        return total / seen, right
""")


def test_sums_of_reads_stay_on_the_device_and_are_read_where_they_are_used(tmp_path):
    changes = {
        "loss.item() *": "loss.detach().double() *",
        ".sum().item()": ".sum()",
        "{total / seen": "{float(total) / seen",
        "return total / seen, right": "return float(total) / seen, int(right)",
    }
    expected = SUMS
    for before, after in changes.items():
        expected = expected.replace(before, after)
    assert mended(tmp_path, SUMS, "H201") == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("        seen +=", "        log(total)\n        seen +="),  # each turn reads it
        ("0.0, 0, 0", "log.start, 0, 0"),
        ("total += loss.item() *", "total += loss.item() + "),
        ("* x.size(0)", "* log.weight"),
        ("            total = 0.0", "            total = loss"),
    ],
)
def test_what_may_be_more_than_a_sum_of_reads_stays(tmp_path, before, after):
    text = SUMS.replace(before, after)
    assert text != SUMS
    changed = mended(tmp_path, text, "H201")
    assert "total += loss.item()" in changed
    assert "right += (output.argmax(1) == y).sum()\n" in changed


def test_a_sum_on_the_device_has_the_bits_of_one_in_python():
    losses = torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 10
    before, after = 0.0, 0.0
    for number, loss in enumerate(losses):
        before += loss.item() * (number % 7)
        after += loss.detach().double() * (number % 7)
    assert float(after) == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.autograd.set_detect_anomaly(True)", "torch.autograd.set_detect_anomaly(False)"),
        ("torch.autograd.set_detect_anomaly(mode=True)", "torch.autograd.set_detect_anomaly(mode=False)"),
        ("with torch.autograd.detect_anomaly():", "with torch.autograd.set_detect_anomaly(False):"),
    ],
)
def test_anomaly_detection_is_switched_off(tmp_path, before, after):
    text = f"import torch\n{before}\n" + ("    train()\n" if before.endswith(":") else "")
    assert mended(tmp_path, text, "H304") == text.replace(before, after)
