"""Train a small CIFAR-10 classifier as a LightningModule with automatic optimization."""
import argparse

import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class ConvBlock(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, padding=1)  # finds H417
        self.bn = nn.BatchNorm2d(c_out)
        self.skip = nn.Conv2d(c_in, c_out, 1, bias=False)
        self.skip_bn = nn.BatchNorm2d(c_out)

    def forward(self, x):
        main = F.relu(self.bn(self.conv(x)))
        return F.max_pool2d(main + self.skip_bn(self.skip(x)), 2)


class LitNet(pl.LightningModule):
    def __init__(self, lr=1e-3, data_dir="data", batch_size=128):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(ConvBlock(3, 32), ConvBlock(32, 64), ConvBlock(64, 128))
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(128 * 4 * 4, 10),
            nn.Softmax(dim=1),  # cross_entropy expects scores: finds H412
        )
        self.train_probs = []
        self.val_probs = []

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        probs = self(x)
        loss = F.cross_entropy(probs, y)
        acc = (probs.argmax(1) == y).float().mean()
        self.train_probs.append(probs)  # finds H206
        self.log("train_acc", acc, on_epoch=True)
        self.log("train_loss", loss.item(), prog_bar=True)  # finds H201
        if batch_idx % 250 == 0:
            self.print(f"{batch_idx}: {loss.item():.3f}")
        return loss

    def on_train_epoch_end(self):
        confidence = torch.cat(self.train_probs).max(1).values.mean()
        self.log("train_confidence", confidence)
        self.train_probs.clear()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        probs = self(x)
        # lightning runs this without gradients
        self.val_probs.append(probs)
        self.log("val_loss", F.nll_loss(torch.log(probs + 1e-8), y).item())

    def on_validation_epoch_end(self):
        seen = torch.zeros(10, device=self.device)
        for probs in self.val_probs:
            seen += probs.sum(0)
        self.log("val_classes", (seen > 1).sum().float())
        self.val_probs.clear()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.02)  # finds H307
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.hparams.lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self):
        tf = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
        ds = datasets.CIFAR10(self.hparams.data_dir, train=True, download=True, transform=tf)
        return DataLoader(
            ds,
            batch_size=self.hparams.batch_size,
            shuffle=True,
            num_workers=4,
            pin_memory=True,
            persistent_workers=True,
        )

    def val_dataloader(self):
        ds = datasets.CIFAR10(self.hparams.data_dir, train=False, transform=transforms.ToTensor())
        return DataLoader(ds, batch_size=256)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--debug", action="store_true")
    p.add_argument("--resume")
    args = p.parse_args()

    pl.seed_everything(1)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    model = LitNet.load_from_checkpoint(args.resume) if args.resume else LitNet()
    trainer = pl.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=args.epochs,
        detect_anomaly=args.debug,
        gradient_clip_val=1.0,
    )
    trainer.fit(model)


if __name__ == "__main__":
    main()
