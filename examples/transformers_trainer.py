"""A small text classifier trained by the Trainer of transformers, and the same training as a hasten.Job.

    python examples/transformers_trainer.py                # by the Trainer: pip install 'hasten[transformers]'
    hasten doctor examples/transformers_trainer.py         # what slows or spoils it, without running it
    hasten train examples/transformers_trainer.py:job      # as a job, which needs no transformers
    hasten tune examples/transformers_trainer.py:job

The model takes its batch by names and returns its loss, as models of transformers do. The job has the same model, data,
optimizer, schedule and clipping. Both see the samples in another order. A text is 16 random tokens; its class is the
one of 4 tokens that it contains.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LinearLR

import hasten

SAMPLES, VOCABULARY, LENGTH, CLASSES = 2000, 200, 16, 4
BATCH, EPOCHS, RATE = 64, 4, 3e-3


class TextClassifier(nn.Module):
    """input_ids: int64 [N, length]; labels: int64 [N]."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=2 * width, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.layer(self.tokens(input_ids)).amax(1))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def load_texts() -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Train and valid: a sample is {"input_ids": [length], "labels": []}."""
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(CLASSES, VOCABULARY, (SAMPLES, LENGTH), generator=generator)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    places = torch.randint(LENGTH, (SAMPLES,), generator=generator)
    texts[torch.arange(SAMPLES), places] = labels
    samples = [{"input_ids": text, "labels": label} for text, label in zip(texts, labels, strict=True)]
    return samples[:1600], samples[1600:]


def accuracy(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction.argmax(1) == target).float().mean()


def train_with_transformers() -> dict[str, float]:
    """Results of an evaluation after the training."""
    from transformers import Trainer, TrainingArguments, set_seed  # pyright: ignore[reportMissingImports]

    def metrics(found: Any) -> dict[str, float]:
        return {"accuracy": accuracy(torch.from_numpy(found.predictions), torch.from_numpy(found.label_ids)).item()}

    set_seed(0)
    train, valid = load_texts()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            num_train_epochs=EPOCHS,
            learning_rate=RATE,
            save_strategy="no",
            report_to="none",
        )
        trainer = Trainer(
            model=TextClassifier(), args=arguments, train_dataset=train, eval_dataset=valid, compute_metrics=metrics
        )
        trainer.train()
        found = trainer.evaluate()
    return {"loss": found["eval_loss"], "accuracy": found["eval_accuracy"]}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> hasten.Loss:
    found, count = model(**batch), len(batch["labels"])
    return hasten.Loss(found["loss"] * count, count, prediction=found["logits"], target=batch["labels"])


def job() -> hasten.Job:
    """No weight decay, a linear schedule and clipping at a norm of 1 are the Trainer's defaults."""
    train, valid = load_texts()
    return hasten.Job(
        model=TextClassifier,
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=RATE, weight_decay=0.0),
        schedule=lambda optimizer, total_steps: LinearLR(optimizer, 1.0, 0.0, total_iters=total_steps),
        clip_norm=1.0,
        train=train,
        valid=valid,
        batch_size=BATCH,
        epochs=EPOCHS,
        metrics={"accuracy": accuracy},
    )


if __name__ == "__main__":
    print(train_with_transformers())
