"""A training mode that is still on in an evaluation, and one that is lost after it."""

from __future__ import annotations

import pytest

from support.doctor.snippets import assert_finds_what_is_marked
from support.doctor.training_scripts import EPOCHS, TWO_MODELS


def test_an_evaluation_with_dropout_on_is_found():
    assert_finds_what_is_marked(
        TWO_MODELS
        + """
@torch.no_grad()
def evaluate(model, loader):
    for x, y in loader:
        model(x)  # finds H414
"""
        + EPOCHS
        + """
plain, other = Plain(), nn.DataParallel(nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3))).cuda()
for epoch in range(3):
    train(plain, train_loader, optimizer)
    train(other, train_loader, optimizer)
    with torch.no_grad():
        for x, y in test_loader:
            plain(x)
        for x, y in test_loader:
            other(x)  # finds H414
""",
        "H414",
    )


@pytest.mark.parametrize(
    "mode",
    [
        "model.eval()",
        "model.train(False)",
        "model.train(mode)",
        "if mode: model.eval()",
        "set_mode(model, 'eval')",
        "for each in models: each.eval()",
        "getattr(model, 'eval')(); model.eval()",
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


def test_of_an_unknown_model_nothing_is_said():
    assert_finds_what_is_marked(
        TWO_MODELS
        + """
from elsewhere import build
@torch.no_grad()
def evaluate(model, loader):
    for x, y in loader:
        model(x)
"""
        + EPOCHS.replace("Net()", "build()"),
        "H414",
    )


def test_a_training_mode_that_does_not_come_back_is_found():
    assert_finds_what_is_marked(
        TWO_MODELS
        + """
@torch.no_grad()
def evaluate(model, loader):
    model.eval()  # finds H415
    for x, y in loader:
        model(x)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model.train()
for epoch in range(9):
    train_in_whatever_mode(model, train_loader, optimizer)
    if epoch % 3 == 0:
        evaluate(model, test_loader)

net = Net()
sgd = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(9):
    net.train()
    for step, (x, y) in enumerate(train_loader):
        loss = net(x).mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        if step % 100 == 0:
            net.eval()  # finds H415
            net(sample)
""",
        "H415",
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


def test_each_turn_of_a_loop_over_models_has_another():
    assert_finds_what_is_marked(
        TWO_MODELS
        + """
models = [Net() for _ in range(3)]
for number, model in enumerate(models):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(9):
        train_in_whatever_mode(model, train_loader, optimizer)
    model.eval()
    model(sample)
for number in range(3):
    optimizer = torch.optim.SGD(models[number].parameters(), 0.1)
    train_in_whatever_mode(models[number], train_loader, optimizer)
    models[number].eval()
    models[number](sample)
""",
        "H415",
    )
