"""Grade retinopathy in fundus photographs with Lightning."""
import lightning as L
import pandas as pd
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T
from torchvision.models import resnet34


class Fundus(Dataset):
    def __init__(self, table, tf):
        self.rows = table.reset_index(drop=True)
        self.tf = tf

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        row = self.rows.iloc[k]
        return self.tf(Image.open(row.path).convert("RGB")), torch.tensor(int(row.grade))


class FundusData(L.LightningDataModule):
    def __init__(self, csv, size=384, workers=8):
        super().__init__()
        self.csv, self.size, self.workers = csv, size, workers

    def setup(self, stage=None):
        table = pd.read_csv(self.csv).sort_values("grade")
        held = table["patient"] % 10 == 0
        keep = [T.Resize((self.size, self.size)), T.ToTensor()]
        self.train_set = Fundus(table[~held], T.Compose([T.RandomHorizontalFlip(), *keep]))
        self.val_set = Fundus(table[held], T.Compose(keep))

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=32, num_workers=8, pin_memory=True,  # finds H104
                          persistent_workers=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=64, num_workers=self.workers, pin_memory=True,
                          persistent_workers=True)


class Grader(L.LightningModule):
    def __init__(self, lr=3e-4, grades=5):
        super().__init__()
        self.save_hyperparameters()
        self.trunk = resnet34(weights="DEFAULT")
        self.trunk.fc = nn.Identity()
        self.top = nn.Sequential(
            nn.Linear(512, 128),  # finds H417
            nn.BatchNorm1d(128),
            nn.GELU(),
            nn.Dropout(0.3),
            nn.Linear(128, grades),
        )
        self.register_buffer("weight", torch.tensor([0.4, 1.2, 0.9, 2.5, 3.0]))
        self.epoch_losses = []

    def forward(self, x):
        return self.top(self.trunk(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y, weight=self.weight)
        self.epoch_losses.append(loss)  # finds H205
        self.log("train_loss", loss.item(), prog_bar=True)  # finds H201
        self.log("train_acc", (logits.argmax(1) == y).float().mean())
        return loss

    def on_train_epoch_end(self):
        mean = torch.stack(self.epoch_losses).mean()
        print(f"epoch {self.current_epoch}: {mean.item():.4f}")
        self.epoch_losses.clear()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_far", (logits.argmax(1) - y).abs().float().mean().item())

    def predict_step(self, batch, batch_idx):
        return self(batch[0]).softmax(1).cpu()

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)  # finds H307
        sched = torch.optim.lr_scheduler.OneCycleLR(
            opt, max_lr=self.hparams.lr, total_steps=self.trainer.estimated_stepping_batches)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def main():
    L.seed_everything(11, workers=True)
    torch.set_float32_matmul_precision("high")
    data = FundusData("fundus.csv")
    best = ModelCheckpoint(monitor="val_loss", mode="min")
    trainer = L.Trainer(
        accelerator="gpu", devices=1, max_epochs=18, precision="bf16-mixed",
        accumulate_grad_batches=2, gradient_clip_val=1.0, callbacks=[best, LearningRateMonitor()])
    trainer.fit(Grader(), data)
    model = Grader.load_from_checkpoint(best.best_model_path)
    trainer.validate(model, data)


if __name__ == "__main__":
    main()
