"""U-Net for the segmentation of cells in microscope images; images and masks are PNG files."""

import random
from glob import glob

import numpy as np
import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.nn.functional as fun
from PIL import Image
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader as DL
from torch.utils.data import Dataset

EPOCHS = 40
CLASSES = 3
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
cudnn.benchmark = False  # finds H301


class Cells(Dataset):
    def __init__(self, root, augment):
        self.images = sorted(glob(f"{root}/images/*.png"))
        self.masks = sorted(glob(f"{root}/masks/*.png"))
        self.augment = augment

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = np.asarray(Image.open(self.images[i]).convert("L"), dtype=np.float32) / 255
        mask = np.asarray(Image.open(self.masks[i]), dtype=np.int64)
        if self.augment and random.random() < 0.5:
            image, mask = image[:, ::-1].copy(), mask[:, ::-1].copy()
        return torch.from_numpy(image)[None], torch.from_numpy(mask)


class DoubleConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, padding=1),  # finds H417
            nn.BatchNorm2d(n_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(n_out, n_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.block(x)


class Up(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.up = nn.ConvTranspose2d(n_in, n_out, 2, stride=2)  # its output is joined, not normalised
        self.conv = DoubleConv(2 * n_out, n_out)

    def forward(self, x, skip):
        return self.conv(torch.cat([self.up(x), skip], dim=1))


class UNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inc = DoubleConv(1, width)
        self.down = nn.ModuleList([DoubleConv(width * 2**i, width * 2 ** (i + 1)) for i in range(3)])
        self.up = nn.ModuleList([Up(width * 2 ** (i + 1), width * 2**i) for i in reversed(range(3))])
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        skips = [self.inc(x)]
        for block in self.down:
            skips.append(block(fun.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for block in self.up:
            x = block(x, skips.pop())
        return fun.softmax(self.head(x), dim=1)  # finds H412


def dice(probabilities, target):
    onehot = fun.one_hot(target, CLASSES).permute(0, 3, 1, 2)
    overlap = (probabilities * onehot).sum((2, 3))
    return 1 - (2 * overlap / (probabilities.sum((2, 3)) + onehot.sum((2, 3)) + 1)).mean()


def validate(net, loader):
    scores = []
    with torch.no_grad():
        for x, y in loader:
            out = net(x.to(dev))  # finds H414
            scores.append(dice(out, y.to(dev)).item())
    return sum(scores) / len(scores)


def main():
    train_loader = DL(Cells("data/train", True), batch_size=8, shuffle=True, pin_memory=True)  # finds H101
    valid_loader = DL(Cells("data/valid", False), batch_size=8, num_workers=2)  # finds H103
    net = UNet().to(dev)
    # the rare class counts for more
    weights = torch.tensor([0.2, 1.0, 3.0]).to(dev)  # finds H203
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)  # finds H307
    sched = OneCycleLR(opt, 1e-3, epochs=EPOCHS, steps_per_epoch=len(train_loader))
    best = 1.0
    for epoch in range(EPOCHS):
        net.train()
        for x, y in train_loader:
            x = x.to(dev)  # finds H204
            y = y.to(dev, non_blocking=True)
            out = net(x)
            loss = fun.cross_entropy(out, y, weight=weights) + dice(out, y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        sched.step()  # finds H403
        score = validate(net, valid_loader)
        print(f"epoch {epoch} dice loss {score:.3f} last {loss.item():.3f}")
        if score < best:
            best = score
            torch.save(net.state_dict(), "unet.pt")


if __name__ == "__main__":
    main()
