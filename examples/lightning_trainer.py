"""A small classifier trained by Lightning, and the same training as a hasten.Job.

    python examples/lightning_trainer.py                   # by Lightning: pip install 'hasten[lightning]'
    hasten doctor examples/lightning_trainer.py            # what slows or spoils it, without running it
    hasten train examples/lightning_trainer.py:job         # as a job, which needs no Lightning
    hasten tune examples/lightning_trainer.py:job

The job has the same model, data, optimizer and schedule. Both see the samples in another order. 20 numbers decide which
of 4 classes a sample belongs to: a fixed random network has labelled them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

import hasten

FEATURES, CLASSES = 20, 4
BATCH, EPOCHS, RATE = 64, 8, 3e-3


def load_samples() -> tuple[TensorDataset, TensorDataset]:
    """Train and valid: float32 features [N, 20] and int64 labels [N]."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(5000, FEATURES, generator=generator)
    hidden = torch.relu(features @ torch.randn(FEATURES, 8, generator=generator))
    labels = (hidden @ torch.randn(8, CLASSES, generator=generator)).argmax(1)
    return TensorDataset(features[:4000], labels[:4000]), TensorDataset(features[4000:], labels[4000:])


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, CLASSES)
    )


def accuracy(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction.argmax(1) == target).float().mean()


def train_with_lightning() -> dict[str, float]:
    """Results of the last evaluation."""
    import lightning  # pyright: ignore[reportMissingImports]

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            features, labels = batch
            loss = functional.cross_entropy(self.model(features), labels)
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
            features, labels = batch
            prediction = self.model(features)
            found = {"loss": functional.cross_entropy(prediction, labels), "accuracy": accuracy(prediction, labels)}
            self.log_dict(found, batch_size=len(labels))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=RATE)
            schedule = CosineAnnealingLR(optimizer, T_max=int(self.trainer.estimated_stepping_batches))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    lightning.seed_everything(0)
    train, valid = load_samples()
    trainer = lightning.Trainer(max_epochs=EPOCHS, logger=False, enable_checkpointing=False)
    trainer.fit(Classifier(), DataLoader(train, batch_size=BATCH, shuffle=True), DataLoader(valid, batch_size=BATCH))
    return {name: float(trainer.callback_metrics[name]) for name in ("loss", "accuracy")}


def job() -> hasten.Job:
    train, valid = load_samples()
    return hasten.Job(
        model=network,
        loss=hasten.supervised(functional.cross_entropy),
        optimizer=lambda params: torch.optim.AdamW(params, lr=RATE),
        schedule=lambda optimizer, total_steps: CosineAnnealingLR(optimizer, T_max=total_steps),
        train=train,
        valid=valid,
        batch_size=BATCH,
        epochs=EPOCHS,
        metrics={"accuracy": accuracy},
    )


if __name__ == "__main__":
    print(train_with_lightning())
