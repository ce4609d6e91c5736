import random

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SineClips(Dataset):
    """Short tones in noise with an on-the-fly augmentation; slow on purpose of realism (an FFT per clip)."""

    def __init__(self, size, train=True):
        self.size, self.train = size, train
        self.pitches = np.linspace(200, 2000, 8)

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        t = np.arange(4000) / 8000
        pitch = self.pitches[i % 8]
        rng = np.random if self.train else np.random.RandomState(i)
        wave = np.sin(2 * np.pi * pitch * t + rng.uniform(0, 6.28)) + rng.normal(0, 1.0, t.shape)
        if self.train and random.random() < 0.5:
            wave = np.roll(wave, random.randrange(len(wave)))
        frames = wave.reshape(16, 250) * np.hanning(250)
        spectrum = np.log1p(np.abs(np.fft.rfft(frames, axis=1)))
        return torch.from_numpy(spectrum.astype(np.float32)), i % 8


def worker_init_fn(worker_id):
    seed = torch.initial_seed() % 2 ** 32
    np.random.seed(seed)
    random.seed(seed)


class PitchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(126, 64)
        self.gru = nn.GRU(64, 48, batch_first=True)
        self.out = nn.Linear(48, 8)

    def forward(self, x):
        h, _ = self.gru(torch.relu(self.proj(x)))
        return self.out(h.mean(dim=1))


def train():
    torch.manual_seed(321)
    train_loader = DataLoader(SineClips(1600), batch_size=32, shuffle=True, num_workers=2,
                              worker_init_fn=worker_init_fn, multiprocessing_context=mp.get_context("fork"))
    test_loader = DataLoader(SineClips(256, train=False), batch_size=64, num_workers=1,
                             multiprocessing_context="fork")
    model = PitchNet()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(3):
        model.train()
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            acc = torch.cat([model(x).argmax(1) == y for x, y in test_loader]).float().mean()
        print(f"epoch {epoch}: loss {loss.item():.6f}, test accuracy {acc.item():.4f}")


train()
