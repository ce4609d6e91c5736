import argparse
import csv
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:
    SummaryWriter = None


class CsvWriter:
    """What stands in where TensorBoard isn't installed."""

    def __init__(self):
        self.file = open("scalars.csv", "w", newline="")
        self.rows = csv.writer(self.file)

    def add_scalar(self, tag, value, step):
        self.rows.writerow([time.time(), tag, step, float(value)])

    def add_histogram(self, *args):
        pass

    def close(self):
        self.file.close()


parser = argparse.ArgumentParser()
parser.add_argument('--no-tb', action='store_true')
parser.add_argument('--epochs', default=3, type=int)
args = parser.parse_args()

torch.manual_seed(55)
writer = CsvWriter() if SummaryWriter is None or args.no_tb else SummaryWriter()

# pairs of sentences (as random word vectors), does the second one answer the first?
q = torch.randn(2400, 24)
rot = torch.linalg.qr(torch.randn(24, 24)).Q
lab = torch.randint(0, 2, (2400,)).float()
a = torch.where(lab[:, None] > 0, q @ rot, torch.randn(2400, 24)) + 0.3 * torch.randn(2400, 24)
loader = DataLoader(TensorDataset(q, a, lab), batch_size=60, shuffle=True)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32))
        self.right = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32))
        self.scale = nn.Parameter(torch.tensor(5.0))

    def forward(self, q, a):
        return self.scale * F.cosine_similarity(self.left(q), self.right(a))


model = TwoTower()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
n_iter = 0
for epoch in range(args.epochs):
    for q_, a_, y_ in loader:
        out = model(q_, a_)
        loss = F.binary_cross_entropy_with_logits(out, y_)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.add_scalar('loss/train', loss.item(), n_iter)
        writer.add_scalar('acc/train', ((out > 0) == (y_ > 0)).float().mean().item(), n_iter)
        if n_iter % 40 == 0:
            for name, p in model.named_parameters():
                writer.add_histogram(name, p.detach(), n_iter)
        n_iter += 1
    print('epoch', epoch, 'loss', loss.item())
writer.close()
