"""When schedules step, in which unit, and for how many steps they are made."""

from __future__ import annotations

import textwrap

import pytest

from support.doctor.snippets import assert_finds_what_is_marked

HEAD = """
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import ExponentialLR, MultiStepLR, OneCycleLR, ReduceLROnPlateau, StepLR
model = nn.Linear(8, 1).cuda()
loader = torch.utils.data.DataLoader(data, 32)
opt = optim.SGD(model.parameters(), lr=0.1)
"""


def finds(text: str, *codes: str) -> None:
    assert_finds_what_is_marked(HEAD + textwrap.dedent(text), *codes)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("pass", "sched.step()"),
        ("if epoch > 0: sched.step()", "pass"),
        ("sched.step(epoch)", "pass"),
        ("loss_weight = weight_schedule.step()", "pass"),
        ("train_first(opt); sched.step()", "pass"),
        ("profiler.step()", "pass"),
    ],
)
def test_a_schedule_that_skips_nothing_is_not_found(before, after):
    finds(
        f"""
        sched = StepLR(opt, 10)
        for epoch in range(30):
            {before}
            for x, y in loader:
                opt.zero_grad()
                model(x).mean().backward()
                opt.step()
            {after}
        """,
        "H402",
    )


LOOP = """
for epoch in range({epochs}):
    for x, y in loader:
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        {batch}
    {epoch}
"""


@pytest.mark.parametrize(
    ("made", "batch", "epoch"),
    [
        ("OneCycleLR(opt, 0.1, epochs=30, steps_per_epoch=len(loader))", "pass", "sched.step()  # finds H403"),
        ("OneCycleLR(opt, 0.1, total_steps=30 * len(loader))", "pass", "sched.step()  # finds H403"),
        ("OneCycleLR(opt, 0.1, total_steps=30)", "pass", "sched.step()"),
        ("ReduceLROnPlateau(opt)", "pass", "sched.step()  # finds H403"),
        ("ReduceLROnPlateau(opt)", "pass", "sched.step(loss)"),
        ("ReduceLROnPlateau(opt) if plateau else StepLR(opt, 9)", "pass", "sched.step()"),
        ("MultiStepLR(opt, [10, 20])", "sched.step()  # finds H403", "pass"),
        ("MultiStepLR(opt, [10_000, 20_000])", "sched.step()", "pass"),
        ("StepLR(opt, 10)", "sched.step()  # finds H403", "pass"),
        ("StepLR(opt, 1000)", "sched.step()", "pass"),
        ("ExponentialLR(opt, 0.9)", "sched.step()  # finds H403", "pass"),
        ("ExponentialLR(opt, 0.9999)", "sched.step()", "pass"),
    ],
)
def test_a_schedule_is_found_where_it_steps_in_another_unit_than_it_counts_in(made, batch, epoch):
    finds(f"sched = {made}\n" + LOOP.format(epochs=30, batch=batch, epoch=epoch), "H403")


@pytest.mark.parametrize("epochs", ["30", "1, 31", "1, 30 + 1"])
@pytest.mark.parametrize(
    ("total", "mark"),
    [
        ("epochs=30, steps_per_epoch=len(loader)", ""),
        ("total_steps=30 * len(loader)", ""),
        ("total_steps=updates", ""),
        ("**cycle", ""),
        ("epochs=50, steps_per_epoch=len(loader)", "  # finds H404"),
        ("total_steps=30", "  # finds H404"),
        ("total_steps=30 * len(loader) // 4", "  # finds H404"),
    ],
)
def test_a_total_is_found_where_it_visibly_differs_from_the_loops(total, mark, epochs):
    made = f"sched = OneCycleLR(opt, 0.1, {total}){mark}\n"
    finds(made + LOOP.format(epochs=epochs, batch="sched.step()", epoch="pass"), "H404")


@pytest.mark.parametrize("epochs", ["epochs", "first, 31", "1, epochs + 1"])
def test_a_total_is_not_found_where_the_epochs_agree_or_are_not_known(epochs):
    made = "sched = OneCycleLR(opt, 0.1, epochs=30, steps_per_epoch=len(loader))\n"
    finds(made + LOOP.format(epochs=epochs, batch="sched.step()", epoch="pass"), "H404")


def test_a_loop_that_may_end_early_says_nothing_of_its_total():
    made = "sched = OneCycleLR(opt, 0.1, epochs=50, steps_per_epoch=len(loader))\n"
    finds(made + LOOP.format(epochs=30, batch="sched.step()", epoch="if loss < 1: break"), "H404")
