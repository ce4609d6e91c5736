"""Real jobs, small ones, whose gradients are proven in tests; and what can go wrong inside a step, to be planted.

A process that finds a harm's name in HASTEN_TEST_HARM does it to all its steps: so only one arm has it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
import hasten.training.build
import hasten.training.step_parts.gradients
import hasten.training.step_parts.window
from hasten.training.step import Step
from hasten.training.step_parts.window import WindowSums

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
if str(EXAMPLES) not in sys.path:
    sys.path.append(str(EXAMPLES))  # an example imports its neighbours
Setter = Callable[[Any, str, Any], None]  # setattr, or one that undoes it


def example(name: str, **sizes: Any) -> hasten.Job:
    module = module_from_spec(found := spec_from_file_location(f"example_of_{name}", EXAMPLES / f"{name}.py"))
    sys.modules[found.name] = module  # where a compiler looks for it
    found.loader.exec_module(module)
    return module.job(**sizes)


def digits() -> hasten.Job:
    """Convolutions, batch norm, ReLU; SGD with Nesterov momentum and weight decay; one cycle."""
    return example("digits", width=8)


def photos() -> hasten.Job:
    """JPEG files, random crops; AdamW."""
    return example("photos", width=16)


def text() -> hasten.Job:
    """Attention, layer norm, GELU; AdamW with two groups; clipped by norm."""
    return example("text", width=128, layers=1, context=16)


class Tagger(nn.Module):
    """Words [batch, length] -> a score for each of five tags at every position."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.tags = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Dropout(dropout), nn.Linear(24, 5))

    def forward(self, words: Tensor) -> Tensor:
        return self.tags(self.words(words))


def token_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> hasten.Loss:
    """Of the words that have a tag: no two microbatches have as many."""
    words, tags = batch
    total = functional.cross_entropy(model(words).flatten(0, 1), tags.flatten(), ignore_index=-100, reduction="sum")
    return hasten.Loss(total, (tags != -100).sum())


def tokens(loss: Any = token_loss, dropout: float = 0.0) -> hasten.Job:
    """A loss that counts tokens; AdamW; clipped by norm in some steps and not in others."""
    generator = torch.Generator().manual_seed(5)
    words = torch.randint(0, 30, (240, 12), generator=generator)
    tags = torch.where(torch.rand(240, 12, generator=generator) < 0.4, -100, words % 5)
    return hasten.Job(
        model=lambda: Tagger(dropout),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-2),
        train=(words, tags),
        batch_size=12,
        epochs=2,
        clip_norm=0.45,
    )


def noisy_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> hasten.Loss:
    return replace(token_loss(model, batch), auxiliary=torch.rand(()) * model(batch[0]).square().mean())


def drawing() -> hasten.Job:
    """Random numbers that no dropout layer draws."""
    return tokens(noisy_loss)


def sparse() -> hasten.Job:
    """An embedding with sparse gradients."""
    job = tokens()

    def model() -> nn.Module:
        tagger = Tagger()
        tagger.words = nn.Embedding(30, 16, sparse=True)
        return tagger

    return replace(job, model=model, optimizer=lambda params: torch.optim.SGD(params, lr=0.1), clip_norm=None)


def short_numbers() -> hasten.Job:
    """Weights of 16 bits."""
    job = tokens()
    return replace(job, model=lambda: Tagger().bfloat16())


def cut() -> hasten.Job:
    """Clipped by value: most numbers lie beyond the bound in some step."""
    return replace(tokens(), clip_norm=None, clip_value=1e-3)


def other_weights() -> hasten.Job:
    """A model that does not follow the job's seed."""

    def model() -> nn.Module:
        torch.seed()
        return Tagger()

    return replace(tokens(), model=model)


def zeros_at_first() -> hasten.Job:
    """Whose last layer begins with zeros: behind it, every gradient is zero in the first step."""

    def model() -> nn.Module:
        tagger = Tagger()
        nn.init.zeros_(tagger.tags[-1].weight)
        return tagger

    return replace(tokens(), model=model)


# ── harms ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def not_divided(put: Setter) -> None:
    """The sums of all microbatches are taken for their mean."""
    put(WindowSums, "divide_gradients", lambda *given: None)


def clipped_before_unscaling(put: Setter) -> None:
    """The bound meets gradients that are still multiplied by a loss scale of 1024."""
    norm = hasten.training.step_parts.gradients.norm
    put(hasten.training.step_parts.gradients, "norm", lambda gradients, kind: norm(gradients, kind) * 1024)


def rescaled(factor: float) -> Callable[[Setter], None]:
    def harm(put: Setter) -> None:
        mean_and_count = hasten.training.step_parts.window.mean_and_count

        def wrong(returned: Any, samples: int) -> Any:
            mean, count = mean_and_count(returned, samples)
            return mean * factor, count

        put(hasten.training.step_parts.window, "mean_and_count", wrong)

    return harm


def before_each_move(change: Callable[[Step], None]) -> Callable[[Setter], None]:
    """change: what happens to a step's gradients before they are clipped and applied."""

    def harm(put: Setter) -> None:
        close = Step.update

        def update(self: Step) -> None:
            change(self)
            close(self)

        put(Step, "update", update)

    return harm


def zero_one(step: Step) -> None:
    gradient = step.parameters[-1].grad
    assert gradient is not None
    gradient.zero_()


def spoil_one(step: Step) -> None:
    gradient = step.parameters[0].grad
    assert gradient is not None
    gradient.view(-1)[0] += gradient.norm() / 5


def without_momentum(put: Setter) -> None:
    """As an optimizer that forgets its state after every step."""
    close = Step.update

    def update(self: Step) -> None:
        close(self)
        for optimizer in self.optimizers:
            for state in optimizer.state.values():
                state.pop("momentum_buffer", None)

    put(Step, "update", update)


def in_the_groups(**settings: Any) -> Callable[[Setter], None]:
    """Optimizers whose groups have other settings than the job's."""

    def harm(put: Setter) -> None:
        make = hasten.training.build.build_optimizers

        def wrong(*given: Any) -> Any:
            optimizers = make(*given)
            for group in optimizers[0].param_groups:
                group.update(settings)
            return optimizers

        put(hasten.training.build, "build_optimizers", wrong)

    return harm


HARMS: dict[str, Callable[[Setter], None]] = {
    "rescaled by 1.01": rescaled(1.01),
    "one parameter zeroed": before_each_move(zero_one),
    "one number spoiled": before_each_move(spoil_one),
    "without weight decay": in_the_groups(weight_decay=0.0),
}


def in_the_first_steps(step: Step) -> None:
    if step.skips.attempted < 3:
        spoil_one(step)


def kill(step: Step) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


OTHER_HARMS = {
    "wrong in three steps": before_each_move(in_the_first_steps),
    "killed": before_each_move(kill),
}
HARMS_OF_CLIPPING = {"clipped before unscaling": clipped_before_unscaling}
HARMS_OF_MICROBATCHES = {"not divided": not_divided}

if harm := os.environ.get("HASTEN_TEST_HARM"):
    {**HARMS, **HARMS_OF_CLIPPING, **HARMS_OF_MICROBATCHES, **OTHER_HARMS}[harm](setattr)
