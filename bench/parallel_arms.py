"""The arms of the benchmark of several processes: one small transformer, by torch's own parts put together by hand, and
by hasten.

Equal in every arm: the model and its initial weights, the rows of a batch, AdamW, the norm that is clipped, one compute
thread in each process. The process that is timed is the first rank; it starts the others, which are stopped and ended
with it.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from bench.stepwise import stepwise
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore  # where torch.distributed has it from
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from hasten.facts.plan import make_plan

WORDS, WIDTH, HEADS, LAYERS, LENGTH = 256, 128, 2, 4, 64
ROWS, SHARE = 4096, 8  # rows in all; of a batch on each process
CLIP = 1.0
MICROBATCHES = 4  # of a step, where stages hand them on
STEPS = 10_000_000  # no benchmark sees their end
LOG_EVERY = 50

Way = Literal["replicate", "shard", "tensor", "pipeline"]
Tick = Callable[[], None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        read = self.before(rows)
        rows = rows + self.attention(read, read, read, need_weights=False)[0]
        return rows + self.narrow(functional.gelu(self.wide(self.behind(rows))))


class Transformer(nn.Module):
    """int64 [batch, LENGTH] -> scores [batch, LENGTH, WORDS]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        rows = self.words(words)
        for block in self.blocks:
            rows = block(rows)
        return self.head(rows)


def data() -> Tensor:
    return torch.randint(WORDS, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(1))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def loss_of(model: nn.Module, words: Tensor) -> Tensor:
    return functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def ticking(optimizer: torch.optim.Optimizer, tick: Tick) -> torch.optim.Optimizer:
    """A step ends, and the next begins, where the optimizer has moved."""
    optimizer.register_step_post_hook(lambda *_: tick())
    return optimizer


# ── one rank by hand ────────────────────────────────────────────────────────────────────────────────────────────────


def by_hand(tick: Tick, rank: int, size: int, way: Way) -> None:
    model, share = Transformer(), slice(rank * SHARE, (rank + 1) * SHARE)
    parallel: nn.Module = model
    if way == "shard":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    elif way == "tensor":
        mesh, share = init_device_mesh("cpu", (size,)), slice(None)
        for block in model.blocks:
            parallelize_module(block, mesh, {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
    elif size > 1:
        parallel = DistributedDataParallel(model)
    optimizer = ticking(adamw(model.parameters()), tick)
    for step, batch in enumerate(batches(size), start=1):
        optimizer.zero_grad()
        loss = loss_of(parallel, batch[share])
        loss.backward()
        if way == "tensor":
            _clip_by_hand([*model.parameters()])
        else:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        if step % LOG_EVERY == 0:
            loss.item()


def batches(size: int) -> Iterator[Tensor]:
    rows, order = data(), torch.Generator().manual_seed(2)
    while True:
        yield rows[torch.randint(ROWS, (size * SHARE,), generator=order)]


def _clip_by_hand(parameters: list[nn.Parameter]) -> None:
    """torch's own takes no list of whole parameters and of such in parts."""
    parts = [each for each in parameters if isinstance(each, DTensor)]
    whole = [each for each in parameters if not isinstance(each, DTensor)]
    norm = torch.hypot(_norm(parts).full_tensor(), _norm(whole))  # pyright: ignore[reportAttributeAccessIssue]
    for some in (parts, whole):
        nn.utils.clip_grads_with_norm_(some, CLIP, norm)


def _norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    return nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])


class Stage(nn.Module):
    """The first or the last of two: with the words before, or the head behind."""

    def __init__(self, whole: Transformer, first: bool) -> None:
        super().__init__()
        half = LAYERS // 2
        self.words = whole.words if first else nn.Identity()
        self.blocks = nn.Sequential(*(whole.blocks[:half] if first else whole.blocks[half:]))
        self.head = nn.Identity() if first else whole.head

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(rows)))


def stages_by_hand(tick: Tick, rank: int, size: int, way: Way) -> None:
    first = rank == 0
    model = Stage(Transformer(), first)
    schedule = Schedule1F1B(
        PipelineStage(model, rank, size, torch.device("cpu")),
        MICROBATCHES,
        loss_fn=lambda scores, words: functional.cross_entropy(scores.flatten(0, 1), words.flatten()),
    )
    optimizer = ticking(adamw(model.parameters()), tick)
    for batch in batches(size):
        optimizer.zero_grad()
        if first:
            schedule.step(batch[:, :-1])
        else:
            schedule.step(target=batch[:, 1:])
        norm = _norm([*model.parameters()]) ** 2
        dist.all_reduce(norm)
        nn.utils.clip_grads_with_norm_(model.parameters(), CLIP, norm.sqrt())
        optimizer.step()


# ── one rank by hasten ──────────────────────────────────────────────────────────────────────────────────────────────

PLANS: dict[Way, dict[str, Any]] = {
    "replicate": {},
    "shard": {"shard": "zero3"},
    "tensor": {"tensor": (2, {"columns": ["blocks.*.wide"], "rows": ["blocks.*.narrow"]})},
    "pipeline": {"pipeline": (2, {"microbatches": MICROBATCHES, "before": [f"blocks.{LAYERS // 2}"]})},
}


def by_hasten(tick: Tick, rank: int, size: int, way: Way, **choices: Any) -> None:
    import hasten

    job = hasten.Job(
        model=Transformer,
        loss=lambda model, batch: loss_of(model, batch[0]),
        optimizer=lambda parameters: ticking(adamw(parameters), tick),
        train=(data(),),
        batch_size=size * SHARE,
        max_steps=STEPS,
        log_every=LOG_EVERY,
        clip_norm=CLIP,
    )
    hasten.train(job, make_plan(**PLANS[way], **choices), receivers=[])


# ── all ranks ───────────────────────────────────────────────────────────────────────────────────────────────────────


def torch_by_hand(way: Way, processes: int = 2) -> Callable[[int], None]:
    return _on_ranks(stages_by_hand if way == "pipeline" else by_hand, processes, way)


def hasten_train(way: Way, processes: int = 2, static_graph: bool = False) -> Callable[[int], None]:
    choices = {"communication": ("plain", {"static_graph": True})} if static_graph else {}
    return _on_ranks(by_hasten, processes, way, choices)


def _on_ranks(
    train: Callable[..., None], processes: int, way: Way, choices: dict[str, Any] | None = None
) -> Callable[[int], None]:
    from bench import parallel_arms as importable  # by a name that a started process knows too

    folder, spawn = tempfile.mkdtemp(prefix="hasten-bench-"), multiprocessing.get_context("spawn")
    for rank in range(1, processes):
        given = (train.__name__, folder, rank, processes, way, choices or {})
        spawn.Process(target=importable.other_rank, args=given, daemon=True).start()
    return stepwise(lambda tick: on_one_rank(train, tick, folder, 0, processes, way, choices or {}))


def other_rank(train: str, folder: str, rank: int, size: int, way: Way, choices: dict[str, Any]) -> None:
    on_one_rank(globals()[train], lambda: None, folder, rank, size, way, choices)


def on_one_rank(
    train: Callable[..., None], tick: Tick, folder: str, rank: int, size: int, way: Way, choices: dict[str, Any]
) -> None:
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", store=FileStore(f"{folder}/store", size), rank=rank, world_size=size)
    train(tick, rank, size, way, **choices)
