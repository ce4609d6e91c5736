"""Gradients of several batches that are added up before the optimizer steps."""

from __future__ import annotations

import textwrap

import pytest

from support.doctor.snippets import assert_finds_what_is_marked

HEAD = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
PARTS = 4
loader = DataLoader(data, 32)
criterion = nn.CrossEntropyLoss()
"""

LOOP = """
for epoch in range(9):
    for i, (x, y) in enumerate(loader):
        loss = {loss}
        {backward}
        if {condition}:
            opt.step()
            opt.zero_grad()
    {behind}
"""


def finds(text: str, *codes: str, wrapper: str = "") -> None:
    made = f"model = {wrapper}(nn.Linear(8, 4).cuda())\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    assert_finds_what_is_marked(HEAD + made + textwrap.dedent(text), *codes)


def loop(loss="criterion(model(x), y)", backward="loss.backward()", condition="(i + 1) % PARTS == 0", behind="pass"):
    return LOOP.format(loss=loss, backward=backward, condition=condition, behind=behind)


@pytest.mark.parametrize(
    ("loss", "backward"),
    [
        ("model(x).loss", "loss.backward()  # finds H409"),
        ("criterion(model(x), y) + 0.5 * nn.functional.mse_loss(model(x), y)", "loss.backward()  # finds H409"),
        ("(criterion(model(x), y) + criterion(model(y), x)) / 2", "loss.backward()  # finds H409"),
        ("criterion(model(x), y) / PARTS", "loss.backward()"),
        ("criterion(model(x), y) * 0.25", "loss.backward()"),
        ("criterion(model(x), y) * weight", "loss.backward()"),
        ("criterion(model(x), y)", "(loss / PARTS).backward()"),
        ("criterion(model(x), y)", "loss = loss / PARTS; loss.backward()"),
        ("criterion(model(x), y)", "loss /= PARTS; loss.backward()"),
        ("criterion(model(x), y)", "loss.div(PARTS).backward()"),
        ("criterion(model(x), y)", "scaler.scale(loss / PARTS).backward()"),
        ("nn.functional.cross_entropy(model(x), y, reduction='sum')", "loss.backward()"),
        ("compute_loss(model, x, cfg)", "loss.backward()"),
        ("criterion(model(x), y)", "engine.backward(loss)"),
        ("criterion(model(x), y)", "loss.backward(weight)"),
        ("criterion(model(x), y)", "loss.backward(); scale_by_hand(); p.grad /= PARTS"),
        ("criterion(model(x), y)", "opt.zero_grad(); loss.backward()"),
    ],
)
def test_a_loss_that_nobody_divides_is_found_unless_it_may_be_weighted(loss, backward):
    finds(loop(loss, backward), "H409")


@pytest.mark.parametrize(
    "condition",
    ["i % PARTS == PARTS - 1", "not (i + 1) % PARTS", "(i + 1) % PARTS == 0 and True"],
)
def test_a_window_is_known_in_every_form(condition):
    finds(loop(backward="loss.backward()  # finds H409", condition=condition), "H409")


@pytest.mark.parametrize("condition", ["i % 1 == 0", "i > 3", "loss.isfinite()", "i % PARTS != 0"])
def test_a_condition_that_is_no_window_is_not_found(condition):
    finds(loop(condition=condition), "H409")
    finds(loop(condition=condition), "H410")


def test_a_window_counted_by_hand_or_left_by_continue_is_known():
    finds(
        """
        count = 0
        for x, y in loader:
            criterion(model(x), y).backward()  # finds H409
            count += 1
            if count == PARTS:
                opt.step()
                opt.zero_grad()
                count = 0
        for i, (x, y) in enumerate(loader):
            criterion(model(x), y).backward()  # finds H409
            if (i + 1) % PARTS != 0:
                continue
            opt.step()
            opt.zero_grad()
        """,
        "H409",
    )


@pytest.mark.parametrize(
    ("batches", "condition", "behind"),
    [
        ("enumerate(loader)", "(i + 1) % PARTS == 0:  # finds H410", "pass"),
        ("enumerate(loader)", "(i + 1) % PARTS == 0 or last:", "pass"),
        ("enumerate(loader)", "(i + 1) % PARTS == 0:", "opt.step(); opt.zero_grad()"),
        ("enumerate(loader)", "(i + 1) % PARTS == 0:", "finish(opt)"),
        ("enumerate(loader)", "global_step % PARTS == 0:", "pass"),
        ("enumerate(islice(stream, 1000))", "(i + 1) % PARTS == 0:", "pass"),
        ("enumerate(cycle(loader))", "(i + 1) % PARTS == 0:", "pass"),
    ],
)
def test_a_last_window_is_found_where_nothing_steps_for_it(batches, condition, behind):
    text = loop(condition="CONDITION", behind=behind).replace("CONDITION:", condition)
    finds(text.replace("enumerate(loader)", batches), "H410")


def test_averaging_after_every_batch_is_found_in_distributed_training_alone():
    finds(loop(backward="loss.backward()  # finds H411"), "H411", wrapper="DDP")
    finds(loop(), "H411")


def test_no_sync_is_no_fault():
    finds(
        """
        from contextlib import nullcontext
        for i, (x, y) in enumerate(loader):
            last = (i + 1) % PARTS == 0 or i + 1 == len(loader)
            with nullcontext() if last else model.no_sync():
                (criterion(model(x), y) / PARTS).backward()
            if last:
                opt.step()
                opt.zero_grad()
        """,
        "H411",
        "H410",
        "H409",
        wrapper="DDP",
    )
