#!/usr/bin/env python
# iris classifier. exit code 0 = ok, 3 = did not learn (the cron job looks at it)
import csv
import sys

import torch
from sklearn.datasets import load_iris
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(20)
iris = load_iris()
order = torch.randperm(150)
X = torch.tensor(iris.data, dtype=torch.float)[order]
y = torch.tensor(iris.target)[order]
X = (X - X.mean(0)) / X.std(0)
train, test = (X[:120], y[:120]), (X[120:], y[120:])

model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn = torch.nn.CrossEntropyLoss()

for epoch in range(60):
    for xb, yb in DataLoader(TensorDataset(*train), batch_size=24, shuffle=True):
        optimizer.zero_grad()
        loss = loss_fn(model(xb), yb)
        loss.backward()
        optimizer.step()
    if epoch % 10 == 0:
        print("epoch", epoch, "loss", loss.item(), file=sys.stderr)

model.eval()
pred = model(test[0]).argmax(1)
with open("predictions.csv", "w", newline="") as f:
    csv.writer(f).writerows(zip(pred.tolist(), test[1].tolist()))
accuracy = (pred == test[1]).float().mean().item()
print("accuracy", accuracy)
if accuracy < 0.8:
    sys.exit(3)
sys.exit(0)
