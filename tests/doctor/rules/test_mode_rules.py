"""A training mode that is still on in an evaluation, and one that is lost after it."""

from __future__ import annotations

import pytest

from support.doctor.snippets import assert_finds_what_is_marked
from support.doctor.training_scripts import EPOCHS, TWO_MODELS


@pytest.mark.parametrize(
    "mode",
    [
        "model.train(False)",
        "model.train(mode)",
        "if mode: model.eval()",
        "set_mode(model, 'eval')",
        "for each in models: each.eval()",
        "model.train()",
    ],
)
def test_a_mode_that_was_set_before_the_evaluation_is_right(mode):
    assert_finds_what_is_marked(
        TWO_MODELS
        + f"""
@torch.no_grad()
def evaluate(model, loader):
    {mode}
    for x, y in loader:
        model(x)
"""
        + EPOCHS,
        "H414",
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model.train()", "pass"),
        ("pass", "model.train()"),
        ("pass", "model.train(was_training)"),
        ("set_train(model)", "pass"),
        ("model = Net()", "pass"),
        ("for each in models: each.train()", "pass"),
        ("pass", "break"),
    ],
)
def test_a_training_mode_that_comes_back_is_right(before, after):
    assert_finds_what_is_marked(
        TWO_MODELS
        + f"""
def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            model(x)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(9):
    {before}
    train_in_whatever_mode(model, train_loader, optimizer)
    if score < best:
        evaluate(model, test_loader)
        {after}
""",
        "H415",
    )


def test_what_stays_in_evaluation_mode_on_purpose_is_right():
    assert_finds_what_is_marked(
        TWO_MODELS
        + """
encoder, head, teacher = Net(), Net(), Net()
optimizer = torch.optim.SGD(head.parameters(), 0.1)
for epoch in range(9):
    head.train()
    encoder.eval()
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    for x, y in train_loader:
        with torch.no_grad():
            target = teacher(x)
        loss = (head(encoder(x)) - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    encoder.eval()
    head.eval()
    teacher.eval()
    with torch.no_grad():
        for x, y in test_loader:
            head(encoder(x)) - teacher(x)

model = Net()
tuned = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(9):
    model.eval()  # its batch norm stays as it was trained before
    train_in_whatever_mode(model, train_loader, tuned)
""",
        "H415",
    )
