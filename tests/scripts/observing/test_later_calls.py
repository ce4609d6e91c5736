"""Whether a script trains once more behind the loop that is running."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
from torch import nn

from hasten.scripts.observing.calls import users_frames
from hasten.scripts.observing.later_calls import called_again

PATH = "/somewhere/train.py"
FUNCTIONS = """\
def step(batch):
    if batch == 0:
        update()
def train(epochs):
    for epoch in range(epochs):
        step(epoch % 2)
"""


def again(source: str, **names: Any) -> str:
    """At the first call of update(), within the loop of line 5."""
    found = list[str]()

    def update() -> None:
        frames = [frame for frame in users_frames() if frame.f_code.co_filename == PATH]
        outermost = next((each for each in frames if each.f_code.co_name == "train"), None)
        if outermost is not None and not found:
            found.append(called_again(frames, outermost, 5))

    text = FUNCTIONS + source
    linecache.cache[PATH] = (len(text), None, text.splitlines(keepends=True), PATH)
    exec(compile(text, PATH, "exec"), {"update": update, **names})
    return found[0]


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        ("train(epochs=9)", "train in train.py:8"),
        ("for epoch in range(9):\n    step(epoch)", "step in train.py:9"),
        ("model.train()", ""),  # another function of that name
        ("def later():\n    train(epochs=9)", ""),
    ],
)
def test_a_later_call_of_what_trains_is_named(behind, expected):
    assert again(f"train(epochs=4)\n{behind}\n", model=nn.Identity()) == expected


@pytest.mark.parametrize(
    "branches",
    [
        "if first:\n    train(4)\nelse:\n    train(9)\n",
        "def main():\n    if first:\n        return train(4)\n    train(9)\nmain()\n",
    ],
)
def test_another_branch_is_no_later_call(branches):
    assert again(branches, first=True) == ""
