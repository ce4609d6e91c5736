"""In which order a step clears, computes, clips and uses gradients."""

from __future__ import annotations

import textwrap

import pytest

from support.doctor.snippets import assert_finds_what_is_marked

HEAD = """
import torch
from torch import nn, optim
model = nn.Linear(8, 1).cuda()
loader = torch.utils.data.DataLoader(data, 32)
opt = optim.SGD(model.parameters(), lr=0.1)
"""


def finds(text: str, *codes: str) -> None:
    assert_finds_what_is_marked(HEAD + textwrap.dedent(text), *codes)


@pytest.mark.parametrize(
    "turn",
    [
        "loss.backward(); opt.zero_grad(); opt.step()  # finds H401",
        "loss.backward(); model.zero_grad(); opt.step()  # finds H401",
        "loss.backward(); opt.step(); opt.zero_grad()",
        "model.zero_grad(); loss.backward(); opt.step()",
        "loss.backward(); opt.step(); clear_gradients(model)",
        "loss.backward(); finish(opt); opt.step()",
        "first.backward(retain_graph=True); opt.zero_grad(); loss.backward(); opt.step()",
        "loss.backward(); keep(model); opt.zero_grad(); p.grad = merged; opt.step()",
        "loss.backward(); trainer.step()",
        "opt.step(lambda: closure(x))",
    ],
)
def test_gradients_that_are_cleared_too_early_are_found(turn):
    finds(f"for x, y in loader:\n    loss = (model(x) - y).pow(2).mean()\n    {turn}\n", "H401")


def test_two_optimizers_of_a_gan_are_kept_apart():
    finds(
        """
        netD, netG = nn.Linear(1, 1), nn.Linear(1, 1)
        optD, optG = optim.Adam(netD.parameters()), optim.Adam(netG.parameters())
        for x, _ in loader:
            netD.zero_grad()
            netD(x).mean().backward()
            fake = netG(x)
            netD(fake.detach()).mean().backward()
            optD.step()
            netG.zero_grad()
            netD(fake).mean().backward()
            optD.zero_grad()
            optG.step()
        """,
        "H401",
    )


def test_a_function_that_others_call_may_leave_the_clearing_to_them():
    finds("def update(loss, optimizer):\n    loss.backward()\n    optimizer.step()\n", "H401")


@pytest.mark.parametrize(
    "turn",
    [
        "loss.backward(); clip(w); opt.step()",
        "scaler.scale(loss).backward(); scaler.unscale_(opt); clip(w); scaler.step(opt); scaler.update()",
        "off.scale(loss).backward(); clip(w); off.step(opt)",
        "clip(w); opt.step(); opt.zero_grad(); loss.backward()",
        "loss.backward(); opt.step(); other.backward(); clip(w); opt.step()",
        "first.backward(); opt_d.step(); clip(w); opt.step()",
        "accelerator.backward(loss); accelerator.clip_grad_norm_(w, 1.0); opt.step()",
        "loss.backward(); opt.step(); clip(w)  # finds H405",
        "clip(w); loss.backward(); opt.step()  # finds H405",
        "opt.zero_grad(); clip(w); loss.backward(); opt.step()  # finds H405",
        "scaler.scale(loss).backward(); clip(w); scaler.step(opt)  # finds H405",
        "before = scaler.get_scale(); scaler.scale(loss).backward(); clip(w); scaler.step(opt)  # finds H405",
        "scaler.scale(loss).backward(); scaler.unscale_(opt_d); clip(w); scaler.step(opt)  # finds H405",
    ],
)
def test_a_clip_is_found_where_it_does_not_hold(turn):
    finds(
        f"""
        from torch.nn.utils import clip_grad_norm_ as clip
        scaler, off = torch.amp.GradScaler(), torch.amp.GradScaler(enabled=False)
        opt_d = optim.Adam(critic.parameters())
        w = model.parameters()
        for x, y in loader:
            loss = model(x).mean()
            {turn}
        """,
        "H405",
    )
