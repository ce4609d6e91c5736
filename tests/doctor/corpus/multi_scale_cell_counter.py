"""Count cells in microscope tiles; the tiles change their size from step to step."""
import argparse
import random

import torch
from torch import nn
from torch.backends import cudnn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

cudnn.benchmark = True  # each step has another size: finds H301
torch.set_float32_matmul_precision("highest")  # finds H308

SCALES = (192, 224, 256, 288, 320, 352)


def get_args():
    parser = argparse.ArgumentParser(description="cell counter")
    parser.add_argument("tiles", help="file with the tensors 'tiles' and 'counts'")
    parser.add_argument("--epochs", default=15, type=int)
    parser.add_argument("--batch", default=24, type=int)
    parser.add_argument("--lr", default=5e-4, type=float)
    parser.add_argument("--deterministic", action="store_true")
    return parser.parse_args()


class Counter(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        layers, cin = [], 1
        for cout in (width, 2 * width, 4 * width):
            layers += [nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU()]
            layers += [nn.MaxPool2d(2)]
            cin = cout
        self.layers = nn.ModuleList(layers)
        self.head = nn.Conv2d(cin, 1, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return F.softplus(self.head(x)).sum(dim=(1, 2, 3))


def relative_errors(guess, truth):
    kept = []
    for i in range(len(guess)):  # finds H207
        kept.append((guess[i] - truth[i]).abs() / truth[i].clamp(min=1))
    return torch.stack(kept).mean()


def train_epoch(model, loader, optimizer, scaler, device):
    loss_sum = torch.zeros((), device=device)
    most = 0
    for tiles, counts in loader:
        tiles = tiles.to(device, non_blocking=True)
        counts = counts.to(device, non_blocking=True)
        side = random.choice(SCALES)
        tiles = F.interpolate(tiles, size=(side, side), mode="bilinear", align_corners=False)

        optimizer.zero_grad()
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            guess = model(tiles)
            loss = F.smooth_l1_loss(guess, counts) + 0.1 * relative_errors(guess, counts)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)  # there is nothing to clip yet: finds H405
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        loss_sum += loss.data
        most = max(most, int(guess.max()))  # finds H201
    return loss_sum.item() / len(loader), most


def check(model, loader, device):
    model.eval()  # finds H415
    gaps = []
    with torch.inference_mode():
        for tiles, counts in loader:
            gaps.append((model(tiles.to(device)) - counts.to(device)).abs())
    return torch.cat(gaps).mean().item()


def main():
    args = get_args()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if args.deterministic:
        torch.use_deterministic_algorithms(True)

    stored = torch.load(args.tiles, weights_only=True)
    everything = TensorDataset(stored["tiles"], stored["counts"])
    cut = int(0.9 * len(everything))
    train_set = Subset(everything, range(cut))
    val_set = Subset(everything, range(cut, len(everything)))
    train_loader = DataLoader(train_set, batch_size=args.batch, pin_memory=True)  # finds H104
    val_loader = DataLoader(val_set, batch_size=args.batch)

    model = Counter().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=False)  # finds H307
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    scaler = torch.amp.GradScaler("cuda")

    model.train()
    for epoch in range(args.epochs):
        loss, most = train_epoch(model, train_loader, optimizer, scaler, device)
        gap = check(model, val_loader, device)
        scheduler.step(gap)
        print(f"{epoch:3d}  loss {loss:.4f}  most {most}  gap {gap:.3f}")


if __name__ == "__main__":
    main()
