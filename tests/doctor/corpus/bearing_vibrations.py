# Fault classes of ball bearings from short pieces of a vibration signal
import argparse
import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import Dataset, DataLoader

p = argparse.ArgumentParser()
p.add_argument('--piece', type=int, default=256)
p.add_argument('--epochs', type=int, default=12)
p.add_argument('--bs', type=int, default=64)
args = p.parse_args()

rng = np.random.default_rng(7)
t = np.arange(40000) / 12000.0


def signal_of(fault):
    tone = np.sin(2 * np.pi * (29.9 + 12.5 * fault) * t)
    hits = (rng.random(40000) < 0.002 * fault).astype(np.float32)
    return (tone + 3.0 * np.convolve(hits, np.exp(-np.arange(64) / 9.0), mode='same')).astype(np.float32)


class Pieces(Dataset):
    """Overlapping pieces, each with its spectrum."""

    def __init__(self, faults, piece):
        self.signals = [signal_of(f) for f in faults]
        self.window = np.hanning(piece)
        self.piece, self.hop = piece, piece // 4

    def __len__(self):
        return len(self.signals) * 500

    def __getitem__(self, i):
        fault, n = divmod(i, 500)
        raw = np.array(self.signals[fault][n * self.hop : n * self.hop + self.piece])
        raw = (raw - raw.mean()) / (raw.std() + 1e-6)
        spectrum = np.log1p(np.square(np.abs(np.fft.rfft(raw * self.window, 2 * self.piece)))[: self.piece])
        channels = torch.tensor([raw, spectrum], dtype=torch.float32)  # finds H208
        return channels, fault


net = nn.Sequential(
    nn.Conv1d(2, 16, 9, stride=2), nn.ReLU(),
    nn.Conv1d(16, 32, 9, stride=2), nn.ReLU(),
    nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Linear(256, 4),
)
opt = optim.AdamW(net.parameters(), 2e-3)
train = DataLoader(Pieces(range(4), args.piece), args.bs, shuffle=True)

for ep in range(args.epochs):
    total = 0.
    for x, y in train:
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    print(ep, total / len(train))

# how the mean spectra of the four faults look to the first layer
spectra = [np.square(np.abs(np.fft.rfft(signal_of(f)))) for f in range(4)]
first = net[0](torch.tensor([np.stack([s[:256], s[256:512]]) for s in spectra], dtype=torch.float32))  # finds H208
print(first.mean((1, 2)))
