"""Forecast the output of wind turbines from the last two days (older lab code)."""
from __future__ import print_function

import time

import numpy as np
import torch
from torch import nn
from torch.autograd import Variable
from torch.utils.data import DataLoader, TensorDataset

HIST, AHEAD, HIDDEN = 288, 36, 96
torch.set_float32_matmul_precision("highest")  # finds H308


def windows(series):
    xs, ys = [], []
    for s in range(0, len(series) - HIST - AHEAD, 6):
        xs.append(series[s:s + HIST])
        ys.append(series[s + HIST:s + HIST + AHEAD, 0])
    return np.stack(xs), np.stack(ys)


class Forecaster(nn.Module):
    def __init__(self, nfeat):
        super(Forecaster, self).__init__()
        self.cell = nn.LSTMCell(nfeat, HIDDEN)
        self.read = nn.Linear(HIDDEN, AHEAD)

    def forward(self, x):
        h = x.new_zeros(x.size(0), HIDDEN)
        c = x.new_zeros(x.size(0), HIDDEN)
        for t in range(x.size(1)):
            h, c = self.cell(x[:, t], (h, c))
        return self.read(h)


def evaluate(model, loader, crit):
    err, n = 0.0, 0
    for x, y in loader:
        out = model(x.cuda())  # finds H413
        err += crit(out, y.cuda()).item() * len(x)
        n += len(x)
    return err / n


def fit_bias(pred, truth):
    """Site-wise gain and offset by L-BFGS; tiny, on the processor."""
    gain = torch.ones(1, requires_grad=True)
    off = torch.zeros(1, requires_grad=True)
    solver = torch.optim.LBFGS([gain, off], max_iter=40)

    def closure():
        solver.zero_grad()
        l = ((gain * pred + off - truth) ** 2).mean()
        l.backward()
        return l

    solver.step(closure)
    return gain.item(), off.item()


def main():
    series = np.load("farm7.npy").astype("float32")
    mu, sd = series.mean(0), series.std(0) + 1e-6
    cut = int(0.8 * len(series))
    xtr, ytr = windows((series[:cut] - mu) / sd)
    xva, yva = windows((series[cut:] - mu) / sd)
    inputs = torch.tensor(xtr)  # finds H202
    goals = torch.tensor(ytr)  # finds H202
    train = DataLoader(TensorDataset(inputs, goals), batch_size=256)  # finds H102 H104
    valid = DataLoader(TensorDataset(torch.from_numpy(xva), torch.from_numpy(yva)), batch_size=512)

    model = nn.DataParallel(Forecaster(series.shape[1])).cuda()  # finds H501
    crit = nn.SmoothL1Loss()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)  # finds H307
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=3)

    best = float("inf")
    for epoch in range(80):
        model.train()
        start = time.time()
        running = 0
        for x, y in train:
            x, y = Variable(x.cuda()), Variable(y.cuda())
            optimizer.zero_grad()
            loss = crit(model(x), y)
            loss.backward()
            optimizer.step()
            torch.cuda.synchronize()  # finds H306
            running = running + loss  # finds H205
        took = time.time() - start
        val = evaluate(model, valid, crit)
        plateau.step()  # finds H403
        print("%d  train %.4f  valid %.4f  (%.1f s)" % (epoch, running.item() / len(train), val, took))
        if val < best:
            best = val
            torch.save(model.module.state_dict(), "turbine.pth")

    model.module.load_state_dict(torch.load("turbine.pth"))  # finds H416
    model.eval()
    with torch.no_grad():
        preds = torch.cat([model(x.cuda()).cpu() for x, _ in valid])
    print("gain, offset:", fit_bias(preds, torch.from_numpy(yva)))


if __name__ == "__main__":
    main()
