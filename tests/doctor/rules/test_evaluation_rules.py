"""Which evaluations record graphs that nobody needs."""

from __future__ import annotations

import pytest

from support.doctor.snippets import assert_finds_what_is_marked
from support.doctor.training_scripts import EPOCHS, TWO_MODELS


@pytest.mark.parametrize(
    ("decorator", "block"),
    [
        ("", "with torch.inference_mode(), open(path) as file:"),
        ("", "with no_gradients():"),
        ("", "with quiet:"),
        ("@evaluating", "if True:"),
    ],
)
def test_an_evaluation_without_gradients_is_right(decorator, block):
    assert_finds_what_is_marked(
        TWO_MODELS
        + f"""
from elsewhere import evaluating
quiet = torch.no_grad()
def no_gradients():
    return torch.inference_mode()

{decorator}
def evaluate(model, loader):
    model.eval()
    {block}
        for x, y in loader:
            model(x)
"""
        + EPOCHS,
        "H413",
        "H414",
    )


def test_an_evaluation_can_be_a_comprehension():
    assert_finds_what_is_marked(
        TWO_MODELS
        + """
def evaluate(model, loader):
    model.eval()
    return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)  # finds H413

def total_loss(model, loader):
    sum((model(x) - y).pow(2).mean() for x, y in loader).backward()

def summed_loss(model, loader):
    loss = sum((model(x) - y).pow(2).mean() for x, y in loader)
    loss.backward()

@torch.no_grad()
def predicted(model, loader):
    return [model(x) for x, y in loader]
"""
        + EPOCHS
        + """
right = sum((model(x) == y).sum().item() for x, y in tqdm(test_loader))  # finds H413
with torch.no_grad():
    right = [model(x) for x, y in test_loader]
""",
        "H413",
    )


def test_gradients_may_be_switched_off_by_the_caller_or_for_good():
    assert_finds_what_is_marked(
        TWO_MODELS
        + """
def evaluate(model, loader):
    model.eval()
    for x, y in loader:
        model(x)

def outer(model, loader):
    return evaluate(model, loader)

def test(model, loader):
    torch.set_grad_enabled(False)
    for x, y in loader:
        model(x)
    torch.set_grad_enabled(True)
    for x, y in loader:
        model(x)  # finds H413

model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(9):
    train(model, train_loader, optimizer)
    with torch.no_grad():
        outer(model, test_loader)
    test(model, test_loader)
""",
        "H413",
    )


def test_a_loop_for_both_phases_is_no_evaluation():
    assert_finds_what_is_marked(
        TWO_MODELS
        + """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(9):
    for phase in ["train", "val"]:
        if phase == "train":
            model.train()
        else:
            model.eval()
        for x, y in loaders[phase]:
            with torch.set_grad_enabled(phase == "train"):
                loss = (model(x) - y).pow(2).mean()
                if phase == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
""",
        "H413",
        "H414",
        "H415",
    )


def test_what_needs_gradients_in_an_evaluation_is_left_alone():
    assert_finds_what_is_marked(
        TWO_MODELS
        + """
def robust(model, loader):
    model.eval()
    for x, y in loader:
        x.requires_grad_(True)
        loss = (model(x) - y).pow(2).mean()
        sign = torch.autograd.grad(loss, x)[0].sign()
        model(x + 0.1 * sign)

def attacked(model, loader):
    model.eval()
    for x, y in loader:
        model(pgd_attack(model, x, y))

def features(model, loader):
    for x, y in loader:
        yield model(x)

def meta(model, loader):
    total = 0
    for x, y in val_loader:
        total = total + (model(x) - y).pow(2).mean()
    outer_optimizer.step(lambda: total)
"""
        + EPOCHS,
        "H413",
    )


def test_a_model_without_gradients_of_its_own_records_nothing():
    assert_finds_what_is_marked(
        TWO_MODELS
        + """
class Features(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return self.inner(x)

teacher, features = Net(), Features()
for p in teacher.parameters():
    p.requires_grad = False
for x, y in test_loader:
    teacher(x)
for x, y in test_loader:
    features(x)
"""
        + EPOCHS.replace("evaluate(model, test_loader)", "pass"),
        "H413",
    )
