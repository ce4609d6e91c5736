"""Rules about models, their losses, their optimizers, and the calls that stop a device."""

from __future__ import annotations

import pytest

from hasten.doctor.lint.fixes import mend
from hasten.doctor.rules import ALL
from support.doctor.snippets import assert_finds_what_is_marked

LOOP = """
import torch
model = torch.nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
for n, x in enumerate(loader):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
"""


def mended(tmp_path, text: str, code: str) -> str:
    """With all that --fix may do for one rule."""
    path = tmp_path / "train.py"
    path.write_text(text)
    found = mend(path, [rule for rule in ALL if rule.code == code])
    assert found is not None
    return found.after


@pytest.mark.parametrize(("call", "code"), [("empty_cache", "H302"), ("synchronize", "H306")])
def test_a_call_that_stops_the_device_is_found_in_every_step(call, code):
    text = f"""{LOOP}
    torch.cuda.{call}()  # finds {code}
    if torch.cuda.is_available():
        torch.cuda.{call}()  # finds {code}
    if n % 100 == 0:
        torch.cuda.{call}()
    if torch.cuda.is_available() and measured:
        torch.cuda.{call}()
torch.cuda.{call}()
"""
    assert_finds_what_is_marked(text, code)


def test_the_fix_takes_the_call_away(tmp_path):
    assert mended(tmp_path, f"{LOOP}    torch.cuda.empty_cache()\n", "H302") == LOOP


def test_gradients_that_are_zeroed_are_found_and_those_that_an_option_zeroes_are_not():
    assert_finds_what_is_marked(
        """
        optimizer.zero_grad(set_to_none=False)  # finds H303
        model.zero_grad(False)  # finds H303
        optimizer.zero_grad()
        optimizer.zero_grad(set_to_none=args.none)
        """,
        "H303",
    )


def test_anomaly_detection_is_found_unless_something_asks_for_it():
    assert_finds_what_is_marked(
        """
        import torch
        from torch.autograd import detect_anomaly
        torch.autograd.set_detect_anomaly(True)  # finds H304
        torch.autograd.set_detect_anomaly(mode=args.debug)
        if args.debug:
            torch.autograd.set_detect_anomaly(True)
        with detect_anomaly():  # finds H304
            loss.backward()
        """,
        "H304",
    )


@pytest.mark.parametrize(
    "made",
    [
        "torch.optim.Adam(model.parameters(), foreach=False)  # finds H307",
        "torch.optim.Adam(model.parameters(), **dict(lr=0.1))  # finds H307",
        "torch.optim.Adam(model.parameters(), fused=use)",
        "torch.optim.Adam(model.parameters(), foreach=True)",
        "torch.optim.Adam(model.parameters(), **more)",
        "torch.optim.RMSprop(model.parameters())",
        "torch.optim.SGD(torch.nn.Embedding(9, 9, sparse=True).parameters(), 0.1)",
    ],
)
def test_an_optimizer_that_could_be_fused_is_found_unless_its_form_was_chosen(made):
    assert_finds_what_is_marked(f"{LOOP}made = {made}\n", "H307")


def test_without_an_accelerator_no_optimizer_is_found():
    assert_finds_what_is_marked(LOOP.replace(".cuda()", "").replace(", fused=True", ""), "H307")


def test_the_fix_fuses_it(tmp_path):
    text = LOOP.replace(", fused=True", "")
    assert mended(tmp_path, text, "H307") == LOOP


@pytest.mark.parametrize(
    "loss",
    [
        "F.cross_entropy(scores, F.softmax(teacher, dim=1))",
        "F.nll_loss(F.log_softmax(scores, 1), y)",
        "F.nll_loss(torch.log(F.softmax(scores, 1)), y)",
        "F.binary_cross_entropy(torch.sigmoid(scores), y)",
        "F.cross_entropy((F.softmax(scores, 1) * weights).sum(1), y)",
        "F.kl_div(F.log_softmax(scores, 1), F.softmax(teacher, 1))",
    ],
)
def test_a_softmax_that_belongs_there_is_not(loss):
    assert_finds_what_is_marked(f"import torch\nimport torch.nn.functional as F\nloss = {loss}\n", "H412")


def test_a_bias_before_batch_norm_is_found_side_by_side():
    assert_finds_what_is_marked(
        """
        from collections import OrderedDict
        from torch import nn
        a = nn.Sequential(
            nn.Conv2d(3, 8, 3),  # finds H417
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, 3),
            nn.ReLU(),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, 3, bias=use_bias),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, 3),
            nn.GroupNorm(2, 8),
        )
        b = nn.Sequential(OrderedDict([("c", nn.Linear(2, 4)), ("n", nn.BatchNorm1d(4))]))  # finds H417
        layers += [nn.Conv1d(2, 4, 3, bias=True), nn.BatchNorm1d(4)]  # finds H417
        c = nn.ModuleList([nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4)])
        """,
        "H417",
    )


def test_a_bias_before_batch_norm_is_found_through_forward():
    assert_finds_what_is_marked(
        """
        from torch import nn
        class Block(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.conv1, self.conv2 = nn.Conv2d(n, n, 3), nn.Conv2d(n, n, 3)  # finds H417
                self.conv3 = nn.Conv2d(n, n, 3)  # finds H417
                self.used_twice = nn.Conv2d(n, n, 3)
                self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(n), nn.BatchNorm2d(n), nn.BatchNorm2d(n)
            def forward(self, x):
                x = self.bn1(self.conv1(x))
                y = self.conv3(x)
                y = self.bn2(y)
                z = self.conv2(y)
                w = self.bn3(self.used_twice(x)) + self.used_twice(z)
                return self.bn3(z) + z + w
        """,
        "H417",
    )
