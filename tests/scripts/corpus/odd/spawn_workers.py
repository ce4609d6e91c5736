import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Mandelbrot(Dataset):
    """Is the point inside? Labels are computed when asked for."""

    def __init__(self, n, iterations=60):
        gen = torch.Generator().manual_seed(n)
        self.points = torch.rand(n, 2, generator=gen) * torch.tensor([3.0, 2.4]) - torch.tensor([2.2, 1.2])
        self.iterations = iterations

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        c = complex(*self.points[index].tolist())
        z = 0j
        for _ in range(self.iterations):
            z = z * z + c
            if abs(z) > 2:
                return self.points[index], torch.tensor(0.0)
        return self.points[index], torch.tensor(1.0)


class Fourier(nn.Module):
    def __init__(self, n=32):
        super().__init__()
        self.register_buffer("freqs", 2 * torch.randn(2, n))
        self.mlp = nn.Sequential(nn.Linear(2 * n, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, p):
        a = p @ self.freqs
        return self.mlp(torch.cat([a.sin(), a.cos()], -1)).squeeze(-1)


def parse_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--epochs", type=int, default=3)
    return ap.parse_args()


def main(args):
    torch.manual_seed(6)
    context = "spawn" if args.workers else None
    loader = DataLoader(Mandelbrot(4096), batch_size=64, shuffle=True, num_workers=args.workers,
                        multiprocessing_context=context, persistent_workers=args.workers > 0)
    model = Fourier()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        losses = []
        for p, inside in loader:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(p), inside)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        print(f"epoch {epoch} mean loss {torch.stack(losses).mean().item():.6f}")


if __name__ == "__main__":
    main(parse_args())
