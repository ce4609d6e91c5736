"""A training as a plain loop, without a loader: python empty_plan_loop.py --width 64 --batch 32"""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--steps", type=int, default=10_000_000)
options = parser.parse_args()

torch.manual_seed(0)
samples, classes = torch.randn(4096, options.width), torch.randint(10, (4096,))
model = nn.Sequential(
    *(nn.Linear(options.width, options.width), nn.ReLU(), nn.Linear(options.width, options.width), nn.ReLU()),
    nn.Linear(options.width, 10),
)
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(options.steps):
    chosen = torch.randint(len(samples), (options.batch,))
    optimizer.zero_grad()
    loss = loss_of(model(samples[chosen]), classes[chosen])
    loss.backward()
    optimizer.step()
