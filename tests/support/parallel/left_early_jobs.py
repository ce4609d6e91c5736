"""Jobs whose model or loss keeps something in Python, makes it late or puts it back late, for runs in a pipeline."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from hasten.entry import prepare
from hasten.errors import HastenError
from hasten.facts.job import Loss
from hasten.facts.plan import make_plan
from support.parallel.pipeline_models import Untied
from support.parallel.tensor_models import LENGTH, WIDTH, WORDS, Block
from support.ranks.word_jobs import job_on_words, loss
from support.training.stateful_jobs import EASING, Printing, Scheduled, of_a_function


class Through(Untied):
    """What it does before its blocks, and with each of them, is another model's to say."""

    def before(self, words: Tensor) -> Tensor:
        return self.words(words) + self.positions

    def block(self, number: int, stream: Tensor) -> Tensor:
        return self.blocks[number](stream)

    def forward(self, words: Tensor) -> Tensor:
        stream = self.before(words)
        for number in range(len(self.blocks)):
            stream = self.block(number, stream)
        return self.head(self.norm(stream))


def of_blocks(kind: type[nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        model = Untied()
        model.blocks = nn.ModuleList(kind() for _ in range(4))
        return model

    return made


class Scaled(Block):
    """It takes its scale from what it is given first."""

    def forward(self, stream: Tensor) -> Tensor:
        if "scale" not in self._buffers:
            self.register_buffer("scale", stream.detach().std(), persistent=False)
        return super().forward(stream / self.scale)


class Kept(Block):
    """As Scaled, and a checkpoint is to have it."""

    def forward(self, stream: Tensor) -> Tensor:
        if "scale" not in self._buffers:
            self.register_buffer("scale", stream.detach().std())
        return super().forward(stream / self.scale)


class Descending(nn.Module):
    """It moves what it is given against the gradient of an energy, where it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def energy(self, stream: Tensor) -> Tensor:
        return self.second(self.first(stream).tanh()).square().sum()

    def forward(self, stream: Tensor) -> Tensor:
        if not stream.requires_grad:
            return stream
        return stream - 0.1 * torch.autograd.grad(self.energy(stream), stream, create_graph=True)[0]


class Functional(Descending):
    def forward(self, stream: Tensor) -> Tensor:
        return stream - 0.1 * torch.func.grad(self.energy)(stream)


class Gated(Block):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.full((WIDTH,), 0.01))

    def forward(self, stream: Tensor) -> Tensor:
        return stream + self.gate * super().forward(stream)


class Table(Through):
    """It makes a table and says for how many words."""

    def before(self, words: Tensor) -> Tensor:
        if not hasattr(self, "known"):
            self.register_buffer("table", torch.arange(words.shape[1]).double()[:, None] / 10, persistent=False)
            self.known = words.shape
        return super().before(words) + self.table


class Masking(Through):
    def __init__(self) -> None:
        super().__init__()
        self.masking = False

    def before(self, words: Tensor) -> Tensor:
        return super().before(words) * (torch.arange(LENGTH) % 2 if self.masking else torch.ones(LENGTH))[:, None]


class Counted(Through):
    """A threshold that two calls do not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def before(self, words: Tensor) -> Tensor:
        self.seen += self.training
        return super().before(words) * (2 if self.seen > 5 else 1)


class CountedSeldom(Through):
    """Of some batches alone, of which the first is none."""

    def __init__(self) -> None:
        super().__init__()
        self.level = 0

    def before(self, words: Tensor) -> Tensor:
        self.level += self.training and int(words[0, 0]) % 5 == 3
        return super().before(words) * (1 + self.level / 2)


class CountedBehind(Through):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def before(self, words: Tensor) -> Tensor:
        return super().before(words) * (1 + (self.seen > 5))

    def forward(self, words: Tensor) -> Tensor:
        scores = super().forward(words)
        self.seen += self.training
        return scores


class BufferBefore(Through):
    """It counts in a buffer what it reads there."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("of_a_kind_that_few_send", torch.zeros(3, dtype=torch.uint16))
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def before(self, words: Tensor) -> Tensor:
        self.seen += self.training
        return super().before(words) * (1 + (self.seen > 5))


class NumberBehind(Through):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, words: Tensor) -> Tensor:
        scores = super().forward(words)
        self.seen += 1
        return scores


class Detaching(Through):
    def block(self, number: int, stream: Tensor) -> Tensor:
        return super().block(number, stream.detach() if number == 3 else stream)


def hooked_backward() -> nn.Module:
    model = Untied()
    model.blocks[2].register_full_backward_hook(lambda module, gives, given: tuple(each / 2 for each in gives))
    return model


class Warming:
    """Words in another order, in the first calls that train."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        words, following = batch
        self.calls += torch.is_grad_enabled() and model.training
        return loss(model, (words.roll(1, 1) if self.calls < 10 else words, following))


def alternating() -> Callable[[nn.Module, Any], Loss]:
    calls = itertools.count()
    return lambda model, batch: loss(model, (batch[0].flip(1) if next(calls) % 2 else batch[0], batch[1]))


def masking(model: nn.Module, batch: Any) -> Loss:
    if model.training and batch[0].sum() % 2:
        model.masking = True
    found = loss(model, batch)
    model.masking = False
    return found


def steering(model: nn.Module, batch: Any) -> Loss:
    """In its training calls."""
    if not model.training:
        return loss(model, batch)
    hook = model.words.register_forward_hook(lambda module, given, gives: gives * 0.9)
    found = loss(model, batch)
    hook.remove()
    return found


def seldom_steering(model: nn.Module, batch: Any) -> Loss:
    """By some batches alone, of which the first is none."""
    return steering(model, batch) if int(batch[0][0, 0]) % 5 == 3 else loss(model, batch)


def seldom_evaluating(model: nn.Module, batch: Any) -> Loss:
    """Another switch, in the last evaluation alone."""
    words, _ = batch
    model.masking = not model.training and len(words) == 3
    found = loss(model, batch)
    model.masking = False
    return found


def stacking(model: nn.Module, batch: Any) -> Loss:
    """A mode for the length of a call, in some."""
    if int(batch[0][0, 0]) % 5 == 3:
        model.modes.append("masking")
    found = loss(model, batch)
    model.modes.clear()
    return found


class Stacked(Masking):
    def __init__(self) -> None:
        super().__init__()
        self.modes = list[str]()

    def before(self, words: Tensor) -> Tensor:
        self.masking = bool(self.modes)
        return super().before(words)


class Cached(Through):
    """Of words, the last three."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = OrderedDict[int, Tensor]()

    def before(self, words: Tensor) -> Tensor:
        first = int(words[0, 0])
        self.cache[first] = self.cache.pop(first, torch.full((1,), first / 10, dtype=torch.float64))
        if len(self.cache) > 3:
            self.cache.popitem(last=False)
        return super().before(words) + self.cache[first]


class Excited(Through):
    """A block decides what is done before the blocks, until the end of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.excited = False

    def block(self, number: int, stream: Tensor) -> Tensor:
        found = super().block(number, stream)
        if number == 0 and self.training and (found - stream).abs().max() > 1.6:
            self.excited = True
        return found

    def before(self, words: Tensor) -> Tensor:
        return super().before(words) * (2 if self.excited else 1)

    def forward(self, words: Tensor) -> Tensor:
        scores = super().forward(words)
        self.excited = False
        return scores


def told_on_one_rank() -> Callable[[nn.Module, Any], Loss]:
    """As what is told by a clock: no two processes do it in the same call."""
    calls, told = itertools.count(), [0]

    def compute(model: nn.Module, batch: Any) -> Loss:
        told[0] += next(calls) == 9 + (dist.get_rank() if dist.is_initialized() else 0) * 8
        return loss(model, batch)

    return compute


def without_head(model: nn.Module, batch: Any) -> Tensor:
    head = model.head
    model.head = nn.Identity()
    features = model(batch[0])
    model.head = head
    return functional.cross_entropy(head(features).flatten(0, 1), batch[1].flatten())


def gates_small(model: nn.Module, batch: Any) -> Tensor:
    scores = model(batch[0]).flatten(0, 1)
    return functional.cross_entropy(scores, batch[1].flatten()) + 1e-6 * sum(each.gate.sum() for each in model.blocks)


def cycled() -> Callable[[nn.Module, Any], Loss]:
    phases = itertools.cycle([False, True])
    return lambda model, batch: loss(model, (batch[0].flip(1) if next(phases) else batch[0], batch[1]))


JOBS: dict[str, dict[str, Any]] = {
    "scaled": {"model": of_blocks(Scaled)},
    "kept": {"model": of_blocks(Kept)},
    "descending": {"model": of_blocks(Descending)},
    "functional": {"model": of_blocks(Functional)},
    "gated": {"model": of_blocks(Gated), "loss": gates_small},
    "table": {"model": Table},
    "masking": {"model": Masking, "loss": masking},
    "counted": {"model": Counted},
    "counted seldom": {"model": CountedSeldom},
    "counted behind": {"model": CountedBehind},
    "buffer before": {"model": BufferBefore},
    "number behind": {"model": NumberBehind},
    "detaching": {"model": Detaching},
    "hooked backward": {"model": hooked_backward},
    "steering": {"loss": steering},
    "seldom steering": {"loss": seldom_steering},
    "seldom evaluating": {"model": Masking, "loss": seldom_evaluating},
    "stacking": {"model": Stacked, "loss": stacking},
    "cached": {"model": Cached},
    "excited": {"model": Excited},
    "phases": {"loss": cycled()},
    "without head": {"loss": without_head},
}


def trained(name: str, choices: Mapping[str, Any]) -> dict[str, Any]:
    """A whole run with an evaluation after each epoch: what it leaves, or is refused with; told: empty, or that."""
    made = {
        "warming": Warming,
        "alternating": alternating,
        "printing": Printing,
        "scheduled": Scheduled,
        "of a function": of_a_function,
        "told on one rank": told_on_one_rank,
        **EASING,
    }
    fields: dict[str, Any] = {"model": Untied, "batch_size": 8, "epochs": 2, "drop_last": True}
    fields |= JOBS[name] if name in JOBS else {"loss": made[name]()}
    try:
        with prepare(job_on_words(fields.pop("model"), WORDS, LENGTH, **fields), make_plan(**choices)) as run:
            results = list[float]()
            for _ in range(2):
                for batch in run.epoch_batches():
                    run.step(batch)
                results += run.evaluate().results.values()
            weights = {key: each.clone() for key, each in run.weights().items()}
            losses = [window.mean for window in run.losses.drain()]
            hooks = sum(len(module._forward_hooks) for module in run.model.modules())
            return {"told": "", "weights": weights, "losses": losses, "results": results, "hooks": hooks}
    except HastenError as error:
        return {"told": str(error)}
