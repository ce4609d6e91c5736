"""What the rules about settings of the whole process, and about torch.load, find, and what they must not."""

from __future__ import annotations

import pytest

from hasten.doctor.reading.source_code import Code
from hasten.doctor.rules import ALL
from support.doctor.snippets import assert_finds_what_is_marked

HEAD = """
import random
import torch
import torch.backends.cudnn as cudnn
from torch import nn
import torch.nn.functional as F

"""


def assert_finds(text: str, *codes: str) -> None:
    assert_finds_what_is_marked(HEAD + text, *codes)


@pytest.mark.parametrize(
    "text",
    [
        "cudnn.benchmark = False\ncudnn.deterministic = args.exact",
        "cudnn.benchmark = False\ntorch.use_deterministic_algorithms(True, warn_only=True)",
        "cudnn.benchmark = False\ncudnn.benchmark = True",
        "if args.exact:\n    cudnn.benchmark = False",
        "cudnn.benchmark = not args.exact",
        "def exact():\n    cudnn.benchmark = False\nif args.exact:\n    exact()",
        "def disable_benchmark():\n    cudnn.benchmark = False",
        "cudnn.benchmark = True\nmodel = nn.Conv2d(3, 8, 3)",
    ],
)
def test_a_search_that_may_not_be_on_or_is_under_a_condition_is_left_alone(text):
    assert_finds(text, "H301")


TRAIN = """
model = nn.Conv2d(3, 8, 3)
size = {once}
for x in batches:
    side = {each}
    model(F.interpolate(x, size=(side, side))).sum().backward()
"""


def test_a_search_that_begins_again_for_each_size_is_found():
    text = "cudnn.benchmark = True  # finds H301" + TRAIN.format(once=0, each="random.choice([32, 64])")
    assert_finds(text, "H301")
    assert_finds(text.replace("nn.Conv2d", "nn.Linear").replace("  # finds H301", ""), "H301")


def test_a_size_that_is_drawn_once_stays_the_same():
    assert_finds("cudnn.benchmark = True" + TRAIN.format(once="random.choice([32, 64])", each="size"), "H301")


@pytest.mark.parametrize(
    "text",
    [
        "torch.backends.cudnn.deterministic = True  # finds H305",
        "torch.use_deterministic_algorithms(True)  # finds H305",
        "def seed(number):\n    cudnn.deterministic = True  # finds H305",
        "if __name__ == '__main__':\n    cudnn.deterministic = True  # finds H305",
        "if not torch.cuda.is_available():\n    raise SystemExit\ncudnn.deterministic = True  # finds H305",
        "cudnn.deterministic = args.exact",
        "torch.use_deterministic_algorithms(False)",
        "def make_reproducible():\n    cudnn.deterministic = True",
        "def seed():\n    cudnn.deterministic = True\nif args.seed:\n    seed()",
        "def test_bits():\n    torch.use_deterministic_algorithms(True)",
        "def f():\n    cudnn.deterministic = True\n    g()\n    cudnn.deterministic = False",
        "try:\n    import card\n    torch.use_deterministic_algorithms(True)\nexcept ImportError:\n    pass",
    ],
)
def test_determinism_is_found_where_every_run_pays_for_it_and_nobody_asks_for_it(text):
    assert_finds(text, "H305")


@pytest.mark.parametrize(
    "text",
    [
        "torch.backends.cuda.matmul.allow_tf32 = False  # finds H308",
        "cudnn.allow_tf32 = False  # finds H308",
        "torch.backends.cuda.matmul.allow_tf32 = cudnn.allow_tf32 = False  # finds H308",
        "torch.set_float32_matmul_precision('highest')  # finds H308",
        "cudnn.allow_tf32 = True",
        "torch.set_float32_matmul_precision(args.precision)",
        "if args.exact:\n    cudnn.allow_tf32 = False",
        "def f():\n    before = cudnn.allow_tf32\n    cudnn.allow_tf32 = False\n    g()\n    cudnn.allow_tf32 = before",
    ],
)
def test_tf32_that_is_switched_off_for_good_is_found(text):
    assert_finds(text, "H308")


@pytest.mark.parametrize(
    "given",
    [
        "path, map_location='cpu')  # finds H416",
        "path, **dict(mmap=True))  # finds H416",
        "path, weights_only=False)",
        "path, **options)",
        "path, None, pickle)",
        "path, pickle_module=dill)",
    ],
)
def test_a_load_that_may_run_code_is_found_unless_a_person_has_decided(given):
    assert_finds(f"state = torch.load({given}", "H416")


def test_a_load_that_nobody_decided_on_gets_its_argument():
    rule = next(each for each in ALL if each.code == "H416")
    (found,) = rule.check(Code(HEAD + "state = torch.load(path)"))
    assert found.edits
