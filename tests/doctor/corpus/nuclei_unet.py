"""Segment cell nuclei in stained tissue tiles with a small U-shaped network."""
import argparse
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.cuda.amp import GradScaler, autocast
from torch.utils.data import DataLoader, Dataset


class NucleiTiles(Dataset):
    def __init__(self, root, names, mirror=False):
        self.root, self.names, self.mirror = root, names, mirror

    def __len__(self):
        return len(self.names)

    def __getitem__(self, k):
        name = self.names[k]
        tile = np.array(Image.open(os.path.join(self.root, "he", name + ".png")), dtype=np.float32) / 255.0
        mask = np.load(os.path.join(self.root, "mask", name + ".npy")).astype(np.float32)
        if self.mirror and np.random.rand() < 0.5:
            tile, mask = tile[:, ::-1].copy(), mask[:, ::-1].copy()
        return torch.from_numpy(tile).permute(2, 0, 1), torch.from_numpy(mask)[None]


def twice(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),  # finds H417
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class SmallU(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.d1, self.d2, self.d3 = twice(3, w), twice(w, 2 * w), twice(2 * w, 4 * w)
        self.u2, self.u1 = twice(6 * w, 2 * w), twice(3 * w, w)
        self.last = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([b, F.interpolate(c, scale_factor=2)], dim=1))
        a = self.u1(torch.cat([a, F.interpolate(b, scale_factor=2)], dim=1))
        return torch.sigmoid(self.last(a))  # finds H412


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("root")
    ap.add_argument("--epochs", type=int, default=60)
    ap.add_argument("--bs", type=int, default=8)
    ap.add_argument("--resume")
    args = ap.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = sorted(n[:-4] for n in os.listdir(os.path.join(args.root, "he")))
    cut = int(len(names) * 0.85)
    train_dl = DataLoader(NucleiTiles(args.root, names[:cut], True), batch_size=args.bs,  # finds H101 H102
                          shuffle=True, drop_last=True)
    val_dl = DataLoader(NucleiTiles(args.root, names[cut:]), batch_size=args.bs)

    net = SmallU().to(device)
    if args.resume:
        net.load_state_dict(torch.load(args.resume, map_location=device))  # finds H416
    opt = torch.optim.Adam(net.parameters(), lr=2e-4)  # finds H307
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=20, gamma=0.3)
    bce = nn.BCEWithLogitsLoss()
    scaler = GradScaler()  # finds H408
    best = 0.0

    for epoch in range(args.epochs):
        sched.step()  # finds H402
        net.train()
        seen = 0
        epoch_loss = torch.zeros((), device=device)
        for tiles, masks in train_dl:
            tiles = tiles.to(device)
            masks = masks.to(device)
            opt.zero_grad()
            with autocast():  # finds H408
                prob = net(tiles)
                loss = bce(prob, masks)
                scaler.scale(loss).backward()  # finds H406
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # finds H405
            scaler.step(opt)
            scaler.update()
            torch.cuda.empty_cache()  # finds H302
            epoch_loss += loss.detach() * tiles.size(0)
            seen += tiles.size(0)

        net.eval()
        inter, union = 0.0, 0.0
        with torch.no_grad():
            for tiles, masks in val_dl:
                tiles, masks = tiles.to(device), masks.to(device)
                hit = net(tiles) > 0.5
                inter += (hit & (masks > 0.5)).sum().item()
                union += (hit | (masks > 0.5)).sum().item()
        iou = inter / max(union, 1.0)
        print(f"{epoch:3d}  loss {epoch_loss.item() / seen:.4f}  iou {iou:.4f}")
        if iou > best:
            best = iou
            torch.save(net.state_dict(), "nuclei_best.pt")


if __name__ == "__main__":
    main()
