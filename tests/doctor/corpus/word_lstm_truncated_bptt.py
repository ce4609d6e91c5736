"""Word-level LSTM; back-propagation through time is truncated by detaching the hidden state."""

import argparse
import math
from collections import Counter

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.tensorboard import SummaryWriter

p = argparse.ArgumentParser()
p.add_argument("--text", default="wiki.train.txt")
p.add_argument("--valid", default="wiki.valid.txt")
p.add_argument("--bptt", type=int, default=35)
p.add_argument("--batch", type=int, default=20)
p.add_argument("--epochs", type=int, default=40)
p.add_argument("--clip", type=float, default=0.25)
p.add_argument("--continue-from")
args = p.parse_args()

torch.manual_seed(1111)
torch.backends.cudnn.deterministic = True  # finds H305
torch.backends.cudnn.benchmark = False  # asked for by the line above
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
writer = SummaryWriter()


def words(path):
    with open(path) as f:
        return f.read().replace("\n", " <eos> ").split()


train_words, valid_words = words(args.text), words(args.valid)
known = {w: i for i, (w, _) in enumerate(Counter(train_words).most_common(30000))}


def batchify(tokens, n):
    ids = torch.tensor([known.get(t, 0) for t in tokens])
    length = len(ids) // n
    return ids[: length * n].view(n, length).t().contiguous().to(device)


class RNNModel(nn.Module):
    def __init__(self, n_words, width=650, layers=2, dropout=0.5):
        super().__init__()
        self.layers, self.width = layers, width
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(n_words, width)
        self.cells = nn.ModuleList([nn.LSTMCell(width, width) for _ in range(layers)])
        self.decoder = nn.Linear(width, n_words)

    def forward(self, tokens, state):
        outputs = []
        for embedded in self.drop(self.encoder(tokens)).unbind(0):  # time: each needs the one before
            x = embedded
            fresh = []
            for cell, (h, c) in zip(self.cells, state):
                h, c = cell(x, (h, c))
                fresh.append((h, c))
                x = self.drop(h)
            state = fresh
            outputs.append(x)
        return self.decoder(torch.stack(outputs)), state

    def start(self, n):
        weight = next(self.parameters())
        return [(weight.new_zeros(n, self.width), weight.new_zeros(n, self.width)) for _ in range(self.layers)]


def repackage(state):
    return [(h.detach(), c.detach()) for h, c in state]


def window(source, i):
    n = min(args.bptt, len(source) - 1 - i)
    return source[i : i + n], source[i + 1 : i + 1 + n].reshape(-1)


train_data, valid_data = batchify(train_words, args.batch), batchify(valid_words, 10)
model = RNNModel(len(known)).to(device)
if args.continue_from:
    model.load_state_dict(torch.load(args.continue_from, map_location=device))  # finds H416
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=20.0)  # finds H307
schedule = ExponentialLR(optimizer, 0.95)


@torch.no_grad()
def evaluate(source):
    model.eval()  # finds H415
    state, total = model.start(10), 0.0
    for i in range(0, len(source) - 1, args.bptt):
        x, y = window(source, i)
        out, state = model(x, state)
        total += len(x) * criterion(out.flatten(0, 1), y).item()
    return total / (len(source) - 1)


def train_epoch(epoch):
    state = model.start(args.batch)
    total = 0
    recent = []
    for step, i in enumerate(range(0, len(train_data) - 1, args.bptt)):
        x, y = window(train_data, i)
        state = repackage(state)
        out, state = model(x, state)
        loss = criterion(out.flatten(0, 1), y)
        optimizer.zero_grad()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # finds H405
        loss.backward()
        optimizer.step()
        total = total + loss  # finds H205
        recent.append(loss.detach())
        writer.add_scalar("train/perplexity", math.exp(loss.item()), step)  # finds H201
        if step % 200 == 199:
            print(epoch, step, torch.stack(recent).mean().item())
            recent.clear()
    return total.item()


model.train()
best = math.inf
for epoch in range(args.epochs):
    train_epoch(epoch)
    schedule.step()
    score = evaluate(valid_data)
    print(f"epoch {epoch} valid perplexity {math.exp(score):.2f}")
    if score < best:
        best = score
        torch.save(model.state_dict(), "rnn.pt")
