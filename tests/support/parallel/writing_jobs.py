"""Runs of several ranks whose losses move parameters and buffers by themselves; for started processes to import."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.entry import prepare
from hasten.errors import HastenError
from hasten.facts.job import Loss
from hasten.facts.plan import make_plan
from support.parallel.pipeline_models import Untied
from support.parallel.tensor_models import LENGTH, WIDTH, WORDS
from support.ranks.word_jobs import job_on_words, loss


class WithTeacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = Untied()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)


def by_teacher(model: nn.Module, batch: Any, *, through_data: bool = False) -> Loss:
    """Which follows the student: by the weights alone."""
    words, _ = batch
    teacher, student = model.get_submodule("teacher"), model.get_submodule("student")
    moved = zip(teacher.parameters(), student.parameters(), strict=True) if torch.is_grad_enabled() else ()
    with torch.no_grad():
        for mine, theirs in moved:
            (mine.data if through_data else mine).lerp_(theirs, 0.3)
        wanted = teacher(words).softmax(-1)
    return Loss((student(words) - wanted).square().sum(), words.numel())


def by_teacher_through_data(model: nn.Module, batch: Any) -> Loss:
    return by_teacher(model, batch, through_data=True)


def normalizing(model: nn.Module, batch: Any) -> Loss:
    with torch.no_grad():
        weight = model.get_submodule("head").weight
        weight.copy_(functional.normalize(weight, dim=1))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return loss(model, batch)


def writing_behind(model: nn.Module, batch: Any) -> Loss:
    found, moves = loss(model, batch), torch.is_grad_enabled()
    with torch.no_grad():
        model.get_parameter("blocks.1.mix.bias").mul_(0.5 if moves else 1.0)
    return found


def reviving() -> Callable[..., Loss]:
    """A few rows are begun anew at random, in the fourth call."""
    calls = itertools.count()

    def revived(model: nn.Module, batch: Any) -> Loss:
        if torch.is_grad_enabled() and next(calls) == 3:
            with torch.no_grad():
                model.get_parameter("words.weight")[:4].normal_()
        return loss(model, batch)

    return revived


def moving_by_rank() -> Callable[..., Loss]:
    """From the sixth call on, one row of the first block is another one on the later half of the ranks."""
    calls = itertools.count()

    def moved(model: nn.Module, batch: Any) -> Loss:
        held = model.get_parameter("blocks.0.mix.weight")
        if torch.is_grad_enabled() and next(calls) > 5 and held.numel():
            held.data[0] = float(2 * dist.get_rank() >= dist.get_world_size())
        return loss(model, batch)

    return moved


def between_two_calls(model: nn.Module, batch: Any) -> Loss:
    first, moves = model(batch[0]), torch.is_grad_enabled()
    with torch.no_grad():
        model.get_parameter("blocks.1.mix.bias").add_(0.1 if moves else 0.0)
    found = loss(model, batch)
    return Loss(found.total + first.square().sum(), found.count)


def around_a_block(model: nn.Module, batch: Any) -> Loss:
    """What is computed by a layer that is not called."""
    found, block = loss(model, batch), model.get_submodule("blocks.1")
    return Loss(found.total + block.get_submodule("mix")(torch.ones(WIDTH).double()).sum(), found.count)


def with_a_penalty(model: nn.Module, batch: Any) -> Loss:
    found, weight = loss(model, batch), model.get_parameter("blocks.1.mix.weight")
    return Loss(found.total + 0.1 * weight.square().sum(), found.count)


def penalty_behind(number: int) -> Callable[..., Loss]:
    """The penalty comes in after so many calls, when a pipeline has been looked at."""
    calls = itertools.count()
    return lambda model, batch: with_a_penalty(model, batch) if next(calls) > number else loss(model, batch)


class OnlyBlocks(nn.Module):
    """Nothing lies around them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WORDS, WORDS), nn.Tanh()) for _ in range(2))

    def forward(self, words: Tensor) -> Tensor:
        stream = functional.one_hot(words, WORDS).double()
        for block in self.blocks:
            stream = block(stream)
        return stream


def gradient_inside(model: nn.Module, batch: Any, *, again: bool) -> Tensor:
    """Of what the first block gives."""
    kept = list[Tensor]()
    with model.get_submodule("blocks.0").register_forward_hook(lambda block, given, found: kept.append(found)):
        given = model(batch[0])
    return torch.autograd.grad(given.sum(), kept, create_graph=again)[0]


def penalizing_gradients(model: nn.Module, batch: Any) -> Loss:
    found = loss(model, batch)
    penalty = gradient_inside(model, batch, again=True).square().sum() if torch.is_grad_enabled() else 0.0
    return Loss(found.total + 0.1 * penalty, found.count)


def adversarial(model: nn.Module, batch: Any) -> Loss:
    """The blocks' own input is moved to where the loss is larger, and the model is called again."""
    if not torch.is_grad_enabled():
        return loss(model, batch)
    moved = 0.01 * gradient_inside(model, batch, again=False).sign()
    with model.get_submodule("blocks.0").register_forward_hook(lambda block, given, found: found + moved):
        return loss(model, batch)


class Scaled(Untied):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))


def replacing() -> Callable[..., Loss]:
    """The head is another one from the third call on."""
    calls = itertools.count()

    def replaced(model: nn.Module, batch: Any) -> Loss:
        if torch.is_grad_enabled() and next(calls) == 2:
            model.head = nn.Linear(WIDTH, WORDS, bias=False).double()
        return loss(model, batch)

    return replaced


def replacing_a_parameter(model: nn.Module, batch: Any) -> Loss:
    """By one of the same name and shape, which a module is free to do."""
    head = model.get_submodule("head")
    head.weight = nn.Parameter(functional.normalize(head.get_parameter("weight").detach()), requires_grad=False)
    return loss(model, batch)


def frozen_head() -> nn.Module:
    model = Untied()
    model.head.requires_grad_(False)
    return model


def replacing_in_the_teacher(model: nn.Module, batch: Any) -> Loss:
    """Which is a layer that is gathered by itself."""
    layer = model.get_submodule("teacher.blocks.1.mix")
    if torch.is_grad_enabled():
        layer.weight = nn.Parameter(layer.get_parameter("weight").detach() * 0.9, requires_grad=False)
    return loss(model, batch)


def following_late() -> Callable[..., Loss]:
    """A teacher that begins to follow, through .data, when values are not compared in each call any more."""
    calls = itertools.count()
    return lambda model, batch: by_teacher(model, batch, through_data=True) if next(calls) > 5 else loss(model, batch)


class Apart(WithTeacher):
    def forward(self, words: Tensor) -> Tensor:
        return self.student(words) + self.teacher(words)


class Centred(nn.Module):
    """A loss that holds a moving centre of what the model gives."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(WORDS, dtype=torch.float64))
        self.register_buffer("ones", torch.ones(1).expand(WORDS))  # to which nothing can be written

    def forward(self, model: nn.Module, batch: Any) -> Loss:
        given = model(batch[0])
        centre = self.get_buffer("centre")
        if torch.is_grad_enabled():
            centre.mul_(0.5).add_(given.detach().mean((0, 1)) * 0.5)
        each = functional.cross_entropy((given - centre.clone()).flatten(0, 1), batch[1].flatten(), reduction="sum")
        return Loss(each, batch[1].numel())


class CentredByParameter(Centred):
    def __init__(self) -> None:
        super().__init__()
        del self.centre
        self.centre = nn.Parameter(torch.zeros(WORDS, dtype=torch.float64), requires_grad=False)
        self.unused = nn.Parameter(torch.zeros(3, device="meta"), requires_grad=False)

    def get_buffer(self, target: str) -> Tensor:
        return self.get_parameter(target)


class OfManyFormats(nn.Module):
    """Whose buffers are nothing that gloo, or a look at strides, takes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("short", torch.ones(3, dtype=torch.int16))
        self.register_buffer("tiny", torch.ones(3).to(torch.float8_e4m3fn))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls it new
            self.register_buffer("sparse", torch.eye(2).to_sparse_csr())

    def forward(self, model: nn.Module, batch: Any) -> Loss:
        return loss(model, batch)


class Masking(nn.Module):
    """A mask for as many samples as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.zeros(0, 0))

    def forward(self, model: nn.Module, batch: Any) -> Loss:
        self.mask = torch.eye(len(batch[0]))
        return loss(model, batch)


class Projecting(nn.Module):
    """Which each process has made otherwise, as without a seed."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.full((1,), 1.0 + dist.get_rank()), requires_grad=False)

    def forward(self, model: nn.Module, batch: Any) -> Loss:
        return loss(model, batch)


class Counting(Untied):
    """What comes before the blocks depends on how often it was called to be trained, which a number of it says."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, words: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.calls += 1
        stream = self.words(words) / self.calls if self.calls else self.words(words)
        for block in self.blocks:
            stream = block(stream)
        return self.head(self.norm(stream))


class Shrinking(Untied):
    def forward(self, words: Tensor) -> Tensor:
        with torch.no_grad():
            self.positions.mul_(0.9)
        return super().forward(words)


def without_a_block(model: nn.Module) -> list[nn.Parameter]:
    model.get_submodule("blocks.1").requires_grad_(False)
    return [each for each in model.parameters() if each.requires_grad]


def only_blocks(model: nn.Module) -> list[nn.Parameter]:
    """The words' own are frozen here, where the optimizer is told what it moves."""
    model.get_submodule("words").requires_grad_(False)
    return [each for each in model.parameters() if each.requires_grad]


def words(count: int) -> tuple[Tensor, Tensor]:
    found = torch.randint(0, WORDS, (count, LENGTH + 1), generator=torch.Generator().manual_seed(7))
    return found[:, :-1], found[:, 1:]


class Noisy(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        with torch.no_grad():
            for each in self.param_groups[0]["params"]:
                each.add_(torch.randn_like(each) * 1e-2)
        return found


JOBS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "teacher": lambda: {"model": WithTeacher, "loss": by_teacher},
    "teacher through .data": lambda: {"model": WithTeacher, "loss": by_teacher_through_data},
    "follows late": lambda: {"model": Apart, "loss": following_late(), "batch_size": 2, "train": words(120)},
    "replacing a parameter": lambda: {"model": frozen_head, "loss": replacing_a_parameter},
    "replacing in a layer": lambda: {"model": Apart, "loss": replacing_in_the_teacher},
    "normalizing": lambda: {"loss": normalizing},
    "behind": lambda: {"loss": writing_behind},
    "reviving": lambda: {"loss": reviving()},
    "noisy": lambda: {"optimizer": lambda parameters: Noisy(parameters, lr=0.01)},
    "moving by rank": lambda: {"loss": moving_by_rank()},
    "between": lambda: {"loss": between_two_calls},
    "around": lambda: {"loss": around_a_block},
    "penalty": lambda: {"loss": with_a_penalty},
    "late penalty": lambda: {"loss": penalty_behind(30)},
    "penalizing gradients": lambda: {"loss": penalizing_gradients},
    "penalizing gradients of blocks": lambda: {"model": OnlyBlocks, "loss": penalizing_gradients},
    "adversarial": lambda: {"loss": adversarial},
    "adversarial to blocks": lambda: {"model": OnlyBlocks, "loss": adversarial},
    "scaled": lambda: {"model": Scaled},
    "block frozen in parameters": lambda: {"parameters": without_a_block},
    "replacing": lambda: {"loss": replacing()},
    "centred": lambda: {"loss": Centred()},
    "centred by a parameter": lambda: {"loss": CentredByParameter()},
    "many formats": lambda: {"loss": OfManyFormats()},
    "masking": lambda: {"loss": Masking(), "drop_last": False},
    "projecting": lambda: {"loss": Projecting()},
    "counting": lambda: {"model": Counting},
    "shrinking": lambda: {"model": Shrinking},
    "frozen in parameters": lambda: {"parameters": only_blocks},
}


def job_of(name: str) -> hasten.Job:
    fields = {"model": Untied, "batch_size": 8, "clip_norm": None, "epochs": 2, "metrics": {}, "drop_last": True}
    fields |= JOBS[name]()
    return job_on_words(fields.pop("model"), WORDS, LENGTH, **fields)


def trained(name: str, choices: Mapping[str, Any]) -> dict[str, Any]:
    """A whole run with an evaluation after each epoch: what it leaves, or is refused with; told: empty, or that."""
    try:
        with prepare(job_of(name), make_plan(**choices)) as run:
            for _ in range(2):
                for batch in run.epoch_batches():
                    run.step(batch)
                run.evaluate()
            weights = {key: each.clone() for key, each in run.weights().items()}
            losses = [window.mean for window in run.losses.drain()]
            return {"told": "", "weights": weights, "losses": losses}
    except HastenError as error:
        return {"told": str(error)}


def step_by_step(name: str, choices: Mapping[str, Any]) -> None:
    """What is raised on one rank ends it, as it ends a process."""
    with prepare(job_of(name), make_plan(**choices)) as run:
        for batch in run.batches():
            run.step(batch)
