#!/usr/bin/env python3
"""Siamese net on pairs of digits with the contrastive loss; the best epoch is kept in siamese_best.pth"""
import os
import random
from sklearn.datasets import load_digits
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, DataLoader, Subset

random.seed(5); torch.manual_seed(5)
MARGIN = 1.0
SAVE_TO = os.environ.get('SIAMESE_OUT', 'siamese_best.pth')


class PairDataset(Dataset):
    def __init__(self, images, labels, n_pairs):
        self.images = images
        self.by_label = {l: [i for i, t in enumerate(labels) if t == l] for l in range(10)}
        self.n_pairs = n_pairs

    def __getitem__(self, index):
        same = index % 2
        a = random.randint(0, 9)
        b = a if same else random.choice([l for l in range(10) if l != a])
        i, j = random.choice(self.by_label[a]), random.choice(self.by_label[b])
        return self.images[i], self.images[j], torch.tensor(float(same))

    def __len__(self):
        return self.n_pairs


class SiameseNetwork(nn.Module):
    def __init__(self, emb=16):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(24 * 16, emb))

    def forward_once(self, x):
        return F.normalize(self.cnn(x))

    def forward(self, x1, x2):
        return self.forward_once(x1), self.forward_once(x2)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def forward(self, e1, e2, same):
        d = F.pairwise_distance(e1, e2)
        return (same * d.pow(2) + (1 - same) * F.relu(self.margin - d).pow(2)).mean()


digits = load_digits()
imgs = torch.tensor(digits.images, dtype=torch.float).unsqueeze(1) / 16
net = SiameseNetwork()
criterion = ContrastiveLoss(MARGIN)
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)

train_dl = DataLoader(PairDataset(imgs[:1400], digits.target[:1400], 2000), batch_size=40)
val_dl = DataLoader(PairDataset(imgs[1400:], digits.target[1400:], 400), batch_size=100)

best = float('inf')
for epoch in range(5):
    net.train()
    for k, (x1, x2, same) in enumerate(train_dl):
        opt.zero_grad()
        loss = criterion(*net(x1, x2), same)
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        val = sum(criterion(*net(a, b), s).item() for a, b, s in val_dl) / len(val_dl)
    print('epoch', epoch, 'loss', round(loss.item(), 5), 'val', round(val, 5))
    if val < best:
        best = val
        torch.save({'epoch': epoch, 'net': net.state_dict(), 'opt': opt.state_dict(), 'val': val}, SAVE_TO)
        print('  saved', SAVE_TO)
