"""Beginnings and ends of training scripts, for snippets of what comes between."""

from __future__ import annotations

TWO_MODELS = """
import torch
from torch import nn
from torch.utils.data import DataLoader

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    def forward(self, x):
        return self.layers(x)

def train(model, loader, optimizer):
    model.train()
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

def train_in_whatever_mode(model, loader, optimizer):
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

"""
EPOCHS = """
train_loader, test_loader = DataLoader(a), DataLoader(b)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(9):
    train(model, train_loader, optimizer)
    evaluate(model, test_loader)
"""
