"""Segment aerial photographs with a small U-Net: a LightningDataModule and a LightningModule."""
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as fun
from PIL import Image
from torch.utils.data import DataLoader as DL
from torch.utils.data import Dataset
from torchvision.transforms.functional import pil_to_tensor


class AerialTiles(Dataset):
    def __init__(self, root):
        self.photos = sorted(Path(root, "photos").glob("*.jpg"))
        self.masks = Path(root, "masks")

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, index):
        photo = self.photos[index]
        image = pil_to_tensor(Image.open(photo).convert("RGB")).float() / 255
        mask = pil_to_tensor(Image.open(self.masks / (photo.stem + ".png"))).long()[0]
        return image, mask


class AerialData(pl.LightningDataModule):
    def __init__(self, root, batch_size=8):
        super().__init__()
        self.root = root
        self.batch_size = batch_size

    def setup(self, stage=None):
        self.train_set = AerialTiles(self.root + "/train")
        self.val_set = AerialTiles(self.root + "/val")

    def train_dataloader(self):
        return DL(self.train_set, batch_size=self.batch_size, shuffle=True, pin_memory=True)  # finds H101

    def val_dataloader(self):
        return DL(self.val_set, batch_size=self.batch_size, num_workers=4, persistent_workers=True, pin_memory=True)


def double(c_in, c_out):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(c_out),
        nn.ReLU(),
        nn.Conv2d(c_out, c_out, 3, padding=1),
        nn.ReLU(),
        nn.BatchNorm2d(c_out),
    )


class UNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.downs = nn.ModuleList([double(3, 32), double(32, 64), double(64, 128)])
        self.ups = nn.ModuleList([double(192, 64), double(96, 32)])
        self.out = nn.Conv2d(32, classes, 1)
        self.aux = nn.Conv2d(32, 2, 1)

    def forward(self, x):
        even = []
        for i in range(len(x)):  # finds H207
            even.append((x[i] - x[i].mean()) / (x[i].std() + 1e-6))
        x = torch.stack(even)
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = fun.max_pool2d(x, 2)
        x = fun.interpolate(skips.pop(), scale_factor=1.0)
        for up in self.ups:
            x = fun.interpolate(x, scale_factor=2.0)
            x = up(torch.cat([x, skips.pop()], 1))
        return self.out(x), self.aux(x)


class Segmenter(pl.LightningModule):
    def __init__(self, classes=6, weights=None):
        super().__init__()
        self.net = UNet(classes)
        if weights:
            self.net.load_state_dict(torch.load(weights, map_location="cpu"))  # finds H416

    def training_step(self, batch, batch_idx):
        image, mask = batch
        scores, edges = self.net(image)
        main = fun.cross_entropy(fun.log_softmax(scores, dim=1), mask)  # finds H412
        side = fun.nll_loss(fun.log_softmax(edges, dim=1), (mask > 0).long())
        loss = main + 0.3 * side
        print(f"batch {batch_idx}: {loss}")  # finds H201
        torch.cuda.empty_cache()  # finds H302
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        image, mask = batch
        scores, _ = self.net(image)
        self.log("val_loss", fun.cross_entropy(scores, mask), prog_bar=True)
        self.log("val_acc", (scores.argmax(1) == mask).float().mean().item())

    def configure_optimizers(self):
        sgd = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, nesterov=True)  # finds H307
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, patience=3)
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


def run():
    torch.autograd.set_detect_anomaly(True)  # finds H304
    trainer = pl.Trainer(accelerator="gpu", devices=1, max_epochs=60, precision="16-mixed", accumulate_grad_batches=4)
    trainer.fit(Segmenter(), datamodule=AerialData("tiles"))


if __name__ == "__main__":
    run()
