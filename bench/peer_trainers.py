"""One training, written for each trainer as its own documentation has it: plain, and with all that it offers.

A trainer's function is what its user writes, so its lines are counted, with what it calls here. "tuned" is every public
setting that makes it faster on a processor: bfloat16 where that pays, the layout for convolutions, a fused optimizer,
loader workers that stay or no loader where rows lie in memory, larger batches in evaluation, data kept as a careful
hand would, and nothing that logs, shows or saves. Denormal numbers are flushed and freed memory is kept for all of
them, as plans of hasten do: that is two lines before the training, which bench/peer_arms.py has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from bench.peer_work import RATE, Batch, Counted, How, Work
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, default_collate

ENDLESS = 10**6  # epochs: no benchmark sees their end
LARGER = 4  # times: batches of an evaluation, which keeps nothing for a backward pass


def loaders(work: Work, how: How, collate: Callable[[Any], Any] | None = None) -> tuple[Any, Any]:
    """For training and for evaluation. Tuned and without workers, rows need no loader to be trained on."""
    size = work.batch_size
    if not how.tuned:
        return DataLoader(work.train, size, shuffle=True), DataLoader(work.valid, size)
    train, valid = work.careful()
    settings: dict[str, Any] = {"collate_fn": collate}
    staying = {"num_workers": how.workers, "persistent_workers": True} if how.workers else {}
    if not work.by_batches:
        kept = DataLoader(train, size, shuffle=True, **settings, **staying)
        return kept, DataLoader(valid, LARGER * size, **settings)
    in_turn = BatchSampler(SequentialSampler(valid), LARGER * size, drop_last=False)
    evaluated_on = DataLoader(valid, batch_size=None, sampler=in_turn, **settings)
    if not how.workers:
        return Gathered(train, size, collate), evaluated_on
    drawn = BatchSampler(RandomSampler(train), size, drop_last=False)
    return DataLoader(train, batch_size=None, sampler=drawn, **settings, **staying), evaluated_on


def model_of(work: Work, how: How) -> nn.Module:
    model: Any = Counted(work.model(), how.tick)
    return model.to(memory_format=torch.channels_last) if how.tuned and work.convolutional else model


def adam(model: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=RATE, fused=fused or None)


class Gathered:
    """Batches of rows in memory, in another order every epoch, without a loader between. collate: what is made of each;
    None: it stays as it is."""

    def __init__(self, rows: Any, size: int, collate: Callable[[Any], Any] | None = None) -> None:
        self._rows, self._size, self._collate = rows, size, collate

    def __len__(self) -> int:
        return -(-len(self._rows) // self._size)

    def __iter__(self) -> Iterator[Any]:
        drawn = map(self._rows.__getitem__, torch.randperm(len(self._rows)).split(self._size))
        return drawn if self._collate is None else map(self._collate, drawn)


def by_hand(work: Work, how: How) -> None:
    """A careful loop in plain torch; not tuned, it is float32 and reads as most loops do."""
    train, valid = loaders(work, how)
    model = model_of(work, how)
    optimizer = adam(model, fused=how.tuned)
    for step, (inputs, targets) in enumerate(batches(work, how, train), start=1):
        if how.tuned and work.convolutional:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=how.tuned and work.narrow):
            loss = work.loss(model(inputs), targets)
        loss.backward()
        if work.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), work.clip)
        optimizer.step()
        if how.told is not None and step % (work.every or len(train)) == 0:
            how.told(evaluated(work, how, model, valid))


def batches(work: Work, how: How, train: Iterable[Batch]) -> Iterator[Batch]:
    """As many as are planned; of a training that does not end, without end."""
    taken, ends = 0, how.told is not None
    for _ in range((work.epochs if ends else None) or ENDLESS):
        for batch in train:
            yield batch
            taken += 1
            if ends and taken == work.steps:
                return


@torch.inference_mode()
def evaluated(work: Work, how: How, model: nn.Module, valid: Iterable[Batch]) -> float:
    model.eval()
    total, count = torch.zeros(()), 0
    for inputs, targets in valid:
        with torch.autocast("cpu", torch.bfloat16, enabled=how.tuned and work.narrow):
            logits = model(inputs)
        total += work.result(logits.float(), targets) * len(targets)
        count += len(targets)
    model.train()
    return float(total / count)


def lightning(work: Work, how: How) -> None:
    import lightning  # pyright: ignore[reportMissingImports]

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_of(work, how)

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            loss = work.loss(self.model(batch[0]), batch[1])
            if not how.tuned:
                self.log("loss", loss, prog_bar=True)
            return loss

        def validation_step(self, batch: Batch, batch_idx: int) -> None:
            result = work.result(self.model(batch[0]).float(), batch[1])
            self.log("result", result, batch_size=len(batch[1]))

        def on_validation_epoch_end(self) -> None:
            if how.told is not None:
                how.told(float(self.trainer.callback_metrics["result"]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adam(self.model, fused=how.tuned)

        def configure_gradient_clipping(
            self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
        ) -> None:
            if how.tuned and gradient_clip_val is not None:
                # In mixed precision its own way of clipping refuses an optimizer that is fused.
                nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)
            else:
                super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    loud = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    settings: dict[str, Any] = dict.fromkeys(loud, False) if how.tuned else {}
    if how.tuned and work.narrow:
        settings["precision"] = "bf16-mixed"
    if how.told is None:
        settings |= {"max_epochs": ENDLESS, "limit_val_batches": 0}
    else:
        settings |= {"max_epochs": work.epochs or ENDLESS, "max_steps": work.steps or -1}
        settings |= {"val_check_interval": work.every, "check_val_every_n_epoch": None if work.every else 1}
    trainer = lightning.Trainer(gradient_clip_val=work.clip, num_sanity_val_steps=0, **settings)
    trainer.fit(Module(), *loaders(work, how))


def accelerate(work: Work, how: How) -> None:
    from accelerate import Accelerator  # pyright: ignore[reportMissingImports]

    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if how.tuned and work.narrow else "no")
    bare = model_of(work, how)
    model, optimizer = accelerator.prepare(bare, adam(bare, fused=how.tuned))
    train, valid = loaders(work, how)
    if not how.tuned:  # at its leanest the loader stays torch's; it prepares none whose sampler gives whole batches
        train, valid = accelerator.prepare(train, valid)
    for step, (inputs, targets) in enumerate(batches(work, how, train), start=1):
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = work.loss(model(inputs), targets)
        accelerator.backward(loss)
        if work.clip is not None:
            accelerator.clip_grad_norm_(model.parameters(), work.clip)
        optimizer.step()
        if how.told is not None and step % (work.every or len(train)) == 0:
            how.told(evaluated(work, how, model, valid))


class Named(nn.Module):
    """Takes its batch by names, and gives its loss, as a model of transformers does."""

    def __init__(self, work: Work, how: How) -> None:
        super().__init__()
        self.model, self._work = model_of(work, how), work

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.model(inputs)
        found = {"loss": self._work.loss(logits, labels)}
        if self.training:
            return found
        return found | {"result": self._work.result(logits.float(), labels).expand(len(labels))}


def settings_of_transformers(work: Work, how: How) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if how.tuned:
        settings |= {"bf16": work.narrow, "optim": "adamw_torch_fused", "disable_tqdm": True, "logging_strategy": "no"}
        settings |= {"save_strategy": "no", "report_to": "none", "dataloader_pin_memory": False}
    if how.told is None:
        return settings | {"max_steps": 10**9}
    settings |= {"max_steps": work.steps} if work.steps else {"num_train_epochs": work.epochs}
    return settings | {"eval_strategy": "steps" if work.every else "epoch", "eval_steps": work.every}


def transformers(work: Work, how: How) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments  # pyright: ignore[reportMissingImports]

    class Telling(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **rest: Any) -> None:
            if how.told is not None:
                how.told(metrics["eval_result"])

    class Careful(Trainer):
        def get_train_dataloader(self) -> Any:
            return careful[0] if how.tuned else super().get_train_dataloader()

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return careful[1] if how.tuned else super().get_eval_dataloader(eval_dataset)

    def collated(batch: Any) -> dict[str, Tensor]:
        inputs, labels = default_collate(batch) if type(batch) is list else batch
        return {"inputs": inputs, "labels": labels}

    careful = loaders(work, how, collated)
    arguments = TrainingArguments(
        output_dir="trained",
        use_cpu=True,
        per_device_train_batch_size=work.batch_size,
        per_device_eval_batch_size=work.batch_size,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=work.clip or 0.0,
        remove_unused_columns=False,
        **settings_of_transformers(work, how),
    )
    trainer = Careful(
        model=Named(work, how),
        args=arguments,
        train_dataset=work.train,
        eval_dataset=work.valid,
        data_collator=collated,
        compute_metrics=lambda found: {"result": float(np.mean(found.predictions))},
        callbacks=[Telling()],
    )
    trainer.train()


TRAINERS = {each.__name__: each for each in (by_hand, lightning, accelerate, transformers)}
