"""How many optimizer steps a script will take, by the loops around one of them."""

from __future__ import annotations

import itertools
import linecache
import math
from collections.abc import Callable, Sequence
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hasten.facts.scripts.seen import Length
from hasten.scripts.observing.calls import users_frames
from hasten.scripts.observing.loops import length_of, turn_of

PATH = "/somewhere/train.py"


def length(source: str, batches: int | None = 10, per_update: float = 1.0, **names: Any) -> Length:
    """At the second call of update() in a source, or the only one."""
    found, turns = list[Length](), list[int | None]()

    def update() -> None:
        frames = [frame for frame in users_frames() if frame.f_code.co_filename == PATH]
        turns.append(turn_of(frames))
        if len(turns) <= 2:
            found.append(length_of(frames, batches, per_update, turns[0] if len(turns) == 2 else None))

    text = dedent(source)
    linecache.cache[PATH] = (len(text), None, text.splitlines(keepends=True), PATH)
    _forget()
    exec(compile(text, PATH, "exec"), {"update": update, **names})
    return found[-1]


def _forget() -> None:
    from hasten.scripts.observing import loops

    for each in vars(loops).values():
        if callable(getattr(each, "cache_clear", None)):
            each.cache_clear()


def test_epochs_of_a_loader():
    found = length(
        """
        def train(loader):
            for batch in loader:
                update()
        def main():
            for epoch in range(args.epochs):
                train(loader)
        main()
        """,
        args=SimpleNamespace(epochs=3),
        loader=[0] * 10,
    )
    assert (found.steps, found.epochs) == (30, 3)


@pytest.mark.parametrize(
    "folds",
    ["range(4)", "enumerate(splits)", "enumerate(kfold.split(data))", "tqdm(kfold.split(data, labels), total=4)"],
)
def test_a_loop_over_folds_multiplies_steps_and_epochs(folds):
    source = f"""
        for fold in {folds}:
            for epoch in range(3):
                for batch in loader:
                    update()
    """
    kfold = SimpleNamespace(n_splits=4, split=lambda *data: iter([(0, 1)] * 4))
    names = {"kfold": kfold, "splits": [(0, 1)] * 4, "data": None, "labels": None}
    found = length(source, loader=[0] * 10, tqdm=lambda each, **named: each, **names)
    assert (found.steps, found.epochs) == (120, 12)


def test_accumulation_divides_the_batches():
    found = length(
        "for epoch in range(2):\n    for batch in loader:\n        update()\n", per_update=4.0, loader=[0] * 10
    )
    assert (found.steps, found.epochs) == (5, 2)


@pytest.mark.parametrize(
    "loop", ["enumerate(loader)", "tqdm(loader)", "enumerate(tqdm(loader, total=10), 1)", "bar", "zip(loader, loader)"]
)
def test_a_loop_over_the_loader_has_its_length(loop):
    source = f"for epoch in range(2):\n    for each in {loop}:\n        update()\n"
    assert length(source, loader=[0] * 10, bar=[0] * 10, tqdm=lambda each, **named: each).steps == 20


@pytest.mark.parametrize(
    ("bounds", "steps"), [("100", 100), ("1, n + 1", 7), ("0, 10, 2", 5), ("int(n)", 7), ("int(np.ceil(n / 2))", 4)]
)
def test_a_range_without_a_loader_counts_steps(bounds, steps):
    found = length(f"for step in range({bounds}):\n    update()\n", batches=None, per_update=0.0, n=7, np=np)
    assert (found.steps, found.epochs) == (steps, None)


def test_a_range_of_a_library_that_shows_progress_counts_steps():
    found = length(
        "for step in tqdm.trange(7):\n    update()\n", None, per_update=0.0, tqdm=SimpleNamespace(trange=range)
    )
    assert (found.steps, found.epochs) == (7, None)


def test_of_loops_side_by_side_the_shortest_ends():
    found = length("for x, y in zip(few, many):\n    update()\n", None, per_update=0.0, few=[0] * 3, many=[0] * 9)
    assert found.steps == 3


OPTIMIZERS = [torch.optim.SGD([torch.zeros(1)]) for _ in range(2)]


@pytest.mark.parametrize("loop", ["each in optimizers", "each, schedule in zip(optimizers, schedules)"])
def test_a_loop_over_optimizers_is_one_step(loop):
    source = f"""
        for epoch in range(2):
            for batch in loader:
                for {loop}:
                    if each is optimizers[0]:
                        update()
    """
    found = length(source, loader=[0] * 10, optimizers=OPTIMIZERS, schedules=[None] * 2)
    assert (found.steps, found.epochs) == (20, 2)


@pytest.mark.parametrize("loop", ["each in optimizers", "name, each in named.items()", "each in named.values()"])
def test_a_loop_over_optimizers_around_all_epochs_trains_with_each(loop: str):
    names = {"optimizers": OPTIMIZERS, "named": dict(enumerate(OPTIMIZERS)), "loader": [0] * 10}
    assert length(f"for {loop}:\n    for batch in loader:\n        update()\n", **names).steps == 20


def test_a_loop_over_optimizers_in_a_step_that_a_library_repeats_is_no_loop_of_steps():
    source = "for each in optimizers:\n    if each is optimizers[0]:\n        update()\n"
    assert "no loop" in length(source, None, 0.0, optimizers=OPTIMIZERS).why


@pytest.mark.parametrize(
    ("loop", "due", "steps"),
    [
        ("range(10)", "step % 2", 10),
        ("range(0, 100, 10)", "step // 10 % 2", 10),
        ("range(0, data.size(0) - 1, 4)", "step // 4 % 2", 8),
        ("range(math.ceil(data.shape[0] / 3))", "step % 2", 11),
        ("range(5)", "step == 4", 2),
        ("range(5)", "True", 10),
    ],
)
def test_accumulation_without_a_loader_divides_the_turns(loop, due, steps):
    source = f"for epoch in range(2):\n    for step in {loop}:\n        if {due}:\n            update()\n"
    assert length(source, None, 0.0, data=torch.zeros(31, 2), math=math).steps == steps


@pytest.mark.parametrize(
    ("source", "steps"),
    [
        ("n = 0\nwhile n < most:\n    update()\n    n += 1\n", 7),
        ("n = 0\nwhile n <= most and True:\n    n += 1\n    update()\n", 8),
        ("n = 0\nwhile True:\n    update()\n    n += 1\n    if n > most:\n        break\n", 8),
        ("n = 5\nwhile True:\n    update()\n    n += 1\n    if most and n >= most:\n        break\n", 2),
        (
            "n = 0\nwhile True:\n    if n == 0 and only:\n        break\n    update()\n    n += 1\n"
            "    if most is not None and n > most:\n        break\n",
            8,
        ),
        ("n = 0\nwhile True:\n    update()\n    n += 1\n    if most >= 0 and n >= most:\n        break\n", 7),
        ("n = 0\nwhile n < most:\n    update()\n    n = n + 1\n", 7),
        ("n = 0\nwhile n < most:\n    for each in loader:\n        update()\n        n += 1\n", 7),
        ("n = 0\nwhile n < most:\n    update()\n    n += size.batch\n", 3),
        ("n = 0\nwhile n < most:\n    n = n + 2\n    update()\n", 4),
        ("while epoch < most:\n    n = 0\n    while n < 70:\n        update()\n        n += 10\n    epoch += 1\n", 49),
    ],
)
def test_a_while_loop_that_counts_to_a_limit_has_its_length(source, steps):
    found = length(source, loader=[0] * 3, most=7, only=False, epoch=0, size=SimpleNamespace(batch=3))
    assert found.steps == steps


@pytest.mark.parametrize(
    ("loop", "counts"),
    [
        ("for batch in cycle(loader)", "n += 1"),
        ("for n, batch in enumerate(cycle(loader), 1)", ""),
        ("for n in itertools.count(1)", ""),
    ],
)
def test_an_endless_for_loop_that_counts_to_a_limit_has_its_length(loop, counts):
    source = f"n = 0\n{loop}:\n    update()\n    {counts}\n    if n >= 70:\n        break\n"
    assert length(source, loader=[0] * 10, cycle=itertools.cycle, itertools=itertools).steps == 70


EPOCHS_OF_STEPS = """
    global_step = 0
    for epoch in range(1000):
        {first}
        for batch in {loop}:
            update()
            global_step += 1
            if global_step >= 70:
                break
    """


@pytest.mark.parametrize(("first", "steps"), [("pass", 70), ("global_step = 0", 70_000), ("total = global_step", 70)])
def test_epochs_multiply_a_limit_only_where_each_begins_to_count_anew(first, steps):
    source = EPOCHS_OF_STEPS.format(first=first, loop="stream")
    assert length(source, batches=None, stream=itertools.repeat(0)) == Length(steps=steps, epochs=None)


@pytest.mark.parametrize(
    ("leaves", "steps"),
    [
        ("if n >= most: return", 25),
        ("if i == 7: break", 700),
        ("bad += 1\n            if step == 8: bad = 0\n            if bad >= 9: break", 1000),
    ],
)
def test_a_limit_ends_a_loop_over_the_loader(leaves, steps):
    found = length(
        f"""
        def main(n=0, bad=0):
            for epoch in range(100):
                for i, step in enumerate(loader):
                    n += 1
                    {leaves.replace("            ", "                    ")}
                    update()
        main()
        """,
        loader=range(10),
        most=25,
    )
    assert found.steps == steps


@pytest.mark.parametrize(("first", "test"), [(0, "epoch < 3"), (1, "epoch <= 3"), (7, "epoch < 10")])
def test_epochs_are_counted_from_the_one_that_runs_first(first, test):
    source = f"epoch = {first}\nwhile {test}:\n    for batch in loader:\n        update()\n    epoch += 1\n"
    assert length(source, loader=[0] * 10) == Length(steps=30, epochs=3)


@pytest.mark.parametrize(
    "made", ["batch in forever(loader)", "batch in stream", "i, batch in enumerate(cycle(loader))"]
)
def test_a_loop_that_repeats_the_loader_without_an_end_is_no_epoch(made):
    source = f"""
        def forever(loader):
            while True:
                yield from loader
        def steps():
            stream = forever(loader)
            for {made}:
                update()
                if done: break
        steps()
        """
    found = length(source, loader=[0] * 10, cycle=itertools.cycle, done=[1])
    assert "no known length" in found.why


@pytest.mark.parametrize(("whole", "steps"), [("itertools.cycle(loader)", 25), ("loader", 10)])
def test_a_part_of_a_loop_has_its_length_and_is_no_longer_than_the_whole(whole: str, steps: int):
    source = f"for batch in itertools.islice({whole}, 25):\n    update()\n"
    assert length(source, loader=[0] * 10, itertools=itertools).steps == steps


def test_what_another_loop_counts_is_no_limit_of_updates():
    source = """
        t = 0
        while t < 200:
            for _ in range(20):
                t += 1
            for part in range(4):
                update()
        """
    assert length(source, None, 0.0).steps is None


@pytest.mark.parametrize("loop", ["n, batch in enumerate(stream, 1)", "n in itertools.count(1)"])
def test_a_loop_that_counts_its_own_turns_begins_anew_in_every_epoch(loop):
    source = f"for seed in [1, 2, 3]:\n    for {loop}:\n        update()\n        if n >= 70:\n            break\n"
    names = {"itertools": itertools, "stream": itertools.repeat(0)}
    assert length(source, **names) == Length(steps=210, epochs=None)


@pytest.mark.parametrize(
    ("function", "steps"),
    [("def train(n=0):", 7), ("def train():\n    n = 0", 21), ("def train():\n    global n", 7)],
)
def test_a_counter_of_a_function_begins_anew_in_every_call(function, steps):
    source = f"{function}\n    while n < 7:\n        update()\n        n += 1\n"
    assert length(f"n = 0\n{source}for seed in [1, 2, 3]:\n    train()\n", None, 0.0).steps == steps


@pytest.mark.parametrize(("counts", "due"), [("before", "n % 4 == 0"), ("after", "(n + 1) % 4 == 0")])
@pytest.mark.parametrize("loop", ["while n < 70", "for batch in cycle(loader)"])
def test_accumulation_divides_a_limit_that_batches_count(loop, counts, due):
    before, after = ("n += 1", "pass") if counts == "before" else ("pass", "n += 1")
    source = f"n = 0\n{loop}:\n    {before}\n    if {due}:\n        update()\n    {after}\n    if n >= 70: break\n"
    assert length(source, per_update=4.0, loader=[0] * 10, cycle=itertools.cycle).steps == 17


def test_a_limit_that_updates_count_is_not_divided():
    source = "n = 0\nwhile True:\n    for part in range(4):\n        next(data)\n    update()\n    n += 1\n"
    found = length(source + "    if n >= 70:\n        break\n", per_update=4.0, data=itertools.repeat(0))
    assert found.steps == 70


@pytest.mark.parametrize(("due", "steps"), [("step > 100", 899), ("step > 100 and step % 10 == 0", 89)])
def test_turns_that_fill_a_replay_buffer_are_no_steps(due, steps):
    source = f"for step in range(1000):\n    if {due}:\n        update()\n"
    assert length(source, None, 0.0).steps == steps


@pytest.mark.parametrize("loop", ["for _ in range(7)", "for _, batch in enumerate(range(7))"])
def test_a_loop_whose_variable_is_given_a_tensor_is_counted(loop):
    assert length(f"{loop}:\n    _, other = torch.zeros(2, 3)\n    update()\n", None, 0.0, torch=torch).steps == 7


def test_a_limit_that_a_function_returns_is_not_known():
    found = length("n = 0\nwhile n < 2 * limit():\n    update()\n    n += 1\n", None, 0.0, limit=lambda: 4)
    assert (found.steps, found.why) == (None, "train.py:2 is a while loop without a counted limit")


def test_batches_that_are_drawn_by_next_count_the_range():
    found = length("data = iter([0] * 10)\nfor step in range(7):\n    next(data)\n    update()\n")
    assert found.steps == 7


PHASES = """
    for epoch in range(4):
        for phase in ["train", "val"]:
            for batch in loaders[phase]:
                if phase == "train":
                    update()
    """


def test_of_a_loop_over_phases_the_steps_are_those_of_one():
    found = length(PHASES, loaders={"train": [0] * 10, "val": [0] * 3})
    assert found == Length(steps=40, epochs=4)


@pytest.mark.parametrize(
    ("branch", "expected"),
    [
        ("evaluate(model)", True),
        ("torch.save(model, path)", True),
        ("print(np.exp(losses.mean().item()), time.strftime('%X'))", False),
        ("pass", False),
    ],
)
def test_what_a_loop_does_once_in_many_steps_interrupts_it_unless_it_only_logs(branch, expected):
    source = f"for step in range(9):\n    update()\n    if (step + 1) % 100 == 0:\n        {branch}\n"
    assert length(source, per_update=0.0).interrupted is expected


def test_a_list_of_seeds_trains_once_for_each():
    found = length("for seed in [1, 2, 3]:\n    for batch in loader:\n        update()\n", loader=[0] * 10)
    assert found == Length(steps=30, epochs=3)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("while True:\n    update()\n    break\n", "while loop"),
        ("n = 0\nk = 1\nwhile n < 9:\n    update()\n    n += k\n    k = 2\n", "while loop"),
        ("n = 0\nwhile n < 9:\n    update()\n    n += count()\n", "while loop"),
        ("for epoch in range(count()):\n    update()\n", "no known length"),
        ("update()\n", "no loop"),
    ],
)
def test_what_is_not_known_says_why(source, why):
    found = length(source, batches=None, per_update=0.0, count=lambda: 3)
    assert found.steps is None
    assert why in found.why


def test_nothing_of_the_users_is_called():
    called = list[int]()
    names: dict[str, Callable[..., Any] | Sequence[int]] = {"count": lambda: called.append(1) or 3}
    length("for epoch in range(count()):\n    update()\n", batches=None, per_update=0.0, **names)
    assert len(called) == 1  # by the script itself


def test_a_loop_around_the_definition_of_a_function_is_not_around_its_steps():
    source = """
        for name in range(5):
            def train():
                for step in range(3):
                    update()
        train()
        """
    assert length(source, batches=None, per_update=0.0).steps == 3
