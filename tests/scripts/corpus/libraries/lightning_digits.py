import warnings

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy

warnings.filterwarnings("ignore", ".*does not have many workers.*")


class DigitsDataModule(L.LightningDataModule):
    def __init__(self, batch_size: int = 48, num_workers: int = 0):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        digits = load_digits()
        full = TensorDataset(torch.tensor(digits.images).float().unsqueeze(1) / 16, torch.tensor(digits.target))
        self.train_ds, self.val_ds = random_split(full, [1500, 297], torch.Generator().manual_seed(0))

    def train_dataloader(self):
        return DataLoader(self.train_ds, batch_size=self.hparams.batch_size, shuffle=True,
                          num_workers=self.hparams.num_workers)

    def val_dataloader(self):
        return DataLoader(self.val_ds, batch_size=self.hparams.batch_size, num_workers=self.hparams.num_workers)


class LitDigits(L.LightningModule):
    def __init__(self, lr: float = 2e-3, hidden: int = 24):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, hidden, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(hidden, hidden, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(hidden * 16, 10))
        self.val_acc = MulticlassAccuracy(10)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.val_acc(logits, y)
        self.log_dict({"val_loss": F.cross_entropy(logits, y), "val_acc": self.val_acc})

    def on_train_epoch_end(self):
        print(self.current_epoch, {k: round(float(v), 6) for k, v in self.trainer.callback_metrics.items()})

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


if __name__ == "__main__":
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="auto",
        devices=1,
        gradient_clip_val=1.0,
        log_every_n_steps=10,
        enable_progress_bar=False,
        logger=CSVLogger("logs"),
        callbacks=[ModelCheckpoint(monitor="val_acc", mode="max"), LearningRateMonitor()],
    )
    trainer.fit(LitDigits(), datamodule=DigitsDataModule())
