"""Next-character model with an LSTM whose state is carried from batch to batch (truncated BPTT).
The text is a made-up language of arithmetic: "12+30=42;"
"""
import argparse
import math
import random

import torch
import torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("--nhid", type=int, default=96)
ap.add_argument("--lr", type=float, default=4e-3)
ap.add_argument("--clip", type=float, default=0.25)
ap.add_argument("--epochs", type=int, default=3)
ap.add_argument("--batch_size", type=int, default=20)
ap.add_argument("--bptt", type=int, default=30)
ap.add_argument("--seed", type=int, default=1111)
args = ap.parse_args()

random.seed(args.seed)
torch.manual_seed(args.seed)

text = "".join(f"{a}+{b}={a + b};" for a, b in ((random.randrange(60), random.randrange(40)) for _ in range(6000)))
vocab = sorted(set(text))
stoi = {c: i for i, c in enumerate(vocab)}
ids = torch.tensor([stoi[c] for c in text])


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()


split = int(len(ids) * 0.95)
train_data = batchify(ids[:split], args.batch_size)
val_data = batchify(ids[split:], 10)


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i:i + seq_len], source[i + 1:i + 1 + seq_len].view(-1)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid = nhid

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        return self.decoder(output).flatten(0, 1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return weight.new_zeros(1, bsz, self.nhid), weight.new_zeros(1, bsz, self.nhid)


def repackage_hidden(h):
    """Wraps hidden states in new Tensors, to detach them from their history."""
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


model = RNNModel(len(vocab), 32, args.nhid)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)


def evaluate(data):
    model.eval()
    total = 0.
    hidden = model.init_hidden(10)
    with torch.no_grad():
        for i in range(0, data.size(0) - 1, args.bptt):
            x, y = get_batch(data, i)
            output, hidden = model(x, hidden)
            total += len(x) * criterion(output, y).item()
    return total / (len(data) - 1)


for epoch in range(1, args.epochs + 1):
    model.train()
    total_loss = 0.
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt)):
        data, targets = get_batch(train_data, i)
        hidden = repackage_hidden(hidden)
        model.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        total_loss += loss.item()
        if batch % 20 == 0 and batch > 0:
            print("| epoch {:3d} | {:4d} batches | loss {:5.3f}".format(epoch, batch, total_loss / 20))
            total_loss = 0
    val_loss = evaluate(val_data)
    print("| end of epoch {:3d} | valid loss {:5.3f} | valid ppl {:8.3f}".format(epoch, val_loss, math.exp(val_loss)))
