"""Runs whose ranks tell what they hold; a module of its own, so that started processes can import it by name."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

import hasten
from hasten.entry import prepare
from hasten.facts.job import Loss
from hasten.facts.plan import make_plan
from hasten.measure.process_memory import held_bytes

WORDS, LENGTH, BATCH, HEADS = 64, 32, 16, 4


class Block(nn.Module):
    """As the one of examples/text.py."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, stream: Tensor) -> Tensor:
        projected = self.query_key_value(self.attention_norm(stream))
        query, key, value = projected.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.mix(attended.transpose(1, 2).flatten(2))
        return stream + self.perceptron(stream)


class Language(nn.Module):
    """layer: () -> one of the layers that it repeats."""

    def __init__(self, width: int, layers: int, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.Sequential(*(layer() for _ in range(layers)))
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(words)))


def gpt(width: int, layers: int) -> nn.Module:
    return Language(width, layers, lambda: Block(width, HEADS))


def encoder(width: int, layers: int) -> nn.Module:
    """torch's own layers."""
    return Language(width, layers, lambda: nn.TransformerEncoderLayer(width, HEADS, 4 * width, 0.0, batch_first=True))


MODELS = {"gpt": gpt, "encoder": encoder}


def loss(model: nn.Module, batch: Any) -> Loss:
    words, following = batch
    scores = model(words).flatten(0, 1)
    return Loss(functional.cross_entropy(scores, following.flatten(), reduction="sum"), following.numel())


def mesh_job(
    model: str | Callable[[], nn.Module] = "gpt", width: int = 64, layers: int = 4, **changes: Any
) -> hasten.Job:
    generator = torch.Generator().manual_seed(7)
    words = torch.randint(0, WORDS, (4 * BATCH, LENGTH + 1), generator=generator)
    fields: dict[str, Any] = {
        "model": (lambda: MODELS[model](width, layers)) if isinstance(model, str) else model,
        "loss": loss,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        "train": (words[:, :-1], words[:, 1:]),
        "batch_size": BATCH,
        "epochs": 1,
    }
    return hasten.Job(**(fields | changes))


class Watched:
    """A loss function that notes what lives when a forward pass ends, and the most that was held meanwhile."""

    def __init__(self) -> None:
        self.saved_bytes, self.peak_bytes = 0, 0

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        kept = dict[int, torch.UntypedStorage]()

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage
            self._look()
            return tensor.detach()  # a node that keeps its own output would keep itself, where no backward pass comes

        def give_back(tensor: Tensor) -> Tensor:
            self._look()
            return tensor

        with saved_tensors_hooks(keep, give_back):
            returned = loss(model, batch)
        # Parameters in parts are of torch's DTensor; while they are whole, plain ones take their place.
        whole = [each for each in (*model.parameters(), *model.buffers()) if not hasattr(each, "to_local")]
        own = {each.untyped_storage()._cdata for each in whole}
        self.saved_bytes = sum(storage.nbytes() for key, storage in kept.items() if key not in own)
        self._look()
        return returned

    def _look(self) -> None:
        self.peak_bytes = max(self.peak_bytes, held_bytes(torch.device("cpu")))


def held_by_a_rank(plans: Sequence[Mapping[str, Any]], of: Mapping[str, Any]) -> list[dict[str, int]]:
    """Bytes in the second pass of the second step, when all is there at once, by each plan."""
    return [trained(choices, of) for choices in plans]


def allocated_by_a_rank(plans: Sequence[Mapping[str, Any]], of: Mapping[str, Any]) -> list[dict[str, int]]:
    """The same, and as `peak` the most that the process has asked for since before the run."""
    found = list[dict[str, int]]()
    for choices in plans:
        trained(choices, {**of, "width": 32, "layers": 2})  # all that is loaded and made once
        gc.collect()
        before = held_bytes(torch.device("cpu"))
        held = trained(choices, of)
        found.append(held | {"peak": held["peak"] - before})
    return found


def trained(choices: Mapping[str, Any], of: Mapping[str, Any]) -> dict[str, int]:
    watched = Watched()
    with prepare(mesh_job(**of, loss=watched), make_plan(**choices)) as run:
        batches = run.batches()
        held = [each for optimizer in run.optimizers for group in optimizer.param_groups for each in group["params"]]
        for _ in range(2):
            run.step(next(batches))
        watched.peak_bytes = 0  # of all that is held to compare divided layers with the whole ones
        summed = summed_bytes(run.step, next(batches))
        gradients = sum(_local(each.grad).nbytes for each in held)
        summed += summed_bytes(run.step, next(batches))
        states = [
            value for optimizer in run.optimizers for state in optimizer.state.values() for value in state.values()
        ]
        return {
            "weights": sum(_local(each).nbytes for each in held),
            "gradients": gradients,
            "state": sum(_local(each).nbytes for each in states),
            "activations": watched.saved_bytes,
            "summed": summed,
            "peak": watched.peak_bytes,
        }


def allocated_by_a_stage(choices: Mapping[str, Any], of: Mapping[str, Any]) -> list[int]:
    """The most bytes that the process has asked for since before the run, in its second step and third."""
    _peak_of_stages(choices, {**of, "width": 32})  # all that is loaded and made once
    gc.collect()
    before = held_bytes(torch.device("cpu"))
    return [_peak_of_stages(choices, of) - before]


def _peak_of_stages(choices: Mapping[str, Any], of: Mapping[str, Any]) -> int:
    watched = Watched()
    with prepare(mesh_job(**of, loss=watched), make_plan(**choices)) as run:
        for batch in run.batches():
            run.step(batch)
            if run.steps == 1:
                watched.peak_bytes = 0  # of the whole model, while its stages are proven
            elif run.steps == 3:
                break
    return watched.peak_bytes


def summed_bytes(step: Callable[[Any], object], batch: Any) -> int:
    """That a pass gives to collectives by itself, as tensor ranks do: those of replicas and parts are torch's own."""
    given = list[int]()
    all_reduce = dist.all_reduce

    def counted(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        given.append(tensor.nbytes)
        return all_reduce(tensor, *arguments, **options)

    with patch.object(dist, "all_reduce", counted):
        step(batch)
    return sum(given)


def _local(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
