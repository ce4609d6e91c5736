"""Click-through rate on an endless log that is streamed line by line (IterableDataset, hashed features)."""
import itertools
import random
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

BUCKETS = 5000
FIELDS = ("site", "ad", "hour", "device")


def click_log(seed):
    """Yields lines such as 'site=17 ad=3 hour=22 device=phone\t1'."""
    rng = random.Random(seed)
    while True:
        site, ad, hour = rng.randrange(50), rng.randrange(20), rng.randrange(24)
        device = rng.choice(["phone", "desktop", "tablet"])
        p = 0.05 + 0.3 * (ad % 5 == site % 5) + 0.2 * (device == "phone") * (hour > 18)
        yield f"site={site} ad={ad} hour={hour} device={device}\t{int(rng.random() < p)}"


class ClickStream(IterableDataset):
    def __init__(self, seed, limit=None):
        super().__init__()
        self.seed, self.limit = seed, limit

    def parse(self, line):
        features, label = line.split("\t")
        hashed = [zlib.crc32(f.encode()) % BUCKETS for f in features.split()]
        return torch.tensor(hashed), float(label)

    def __iter__(self):
        lines = itertools.islice(click_log(self.seed), self.limit)
        info = get_worker_info()
        if info is not None:
            lines = itertools.islice(lines, info.id, None, info.num_workers)
        return map(self.parse, lines)


class FactorizationMachine(nn.Module):
    def __init__(self, k=8):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.linear = nn.Embedding(BUCKETS, 1)
        self.factors = nn.Embedding(BUCKETS, k)
        nn.init.zeros_(self.linear.weight)
        nn.init.normal_(self.factors.weight, std=0.1)

    def forward(self, ids):
        v = self.factors(ids)
        pairs = 0.5 * (v.sum(1) ** 2 - (v ** 2).sum(1)).sum(1)
        return self.bias + self.linear(ids).sum((1, 2)) + pairs


def main(max_batches=400, batch_size=64):
    torch.manual_seed(9)
    model = FactorizationMachine()
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    stream = DataLoader(ClickStream(seed=1), batch_size=batch_size)
    holdout = list(DataLoader(ClickStream(seed=2, limit=2048), batch_size=512))

    progressive = 0.0
    for n, (ids, clicks) in enumerate(stream, start=1):
        clicks = clicks.float()
        loss = criterion(model(ids), clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progressive += loss.item()
        if n % 100 == 0:
            with torch.no_grad():
                val = sum(criterion(model(i), c.float()).item() for i, c in holdout) / len(holdout)
            print(f"{n * batch_size:7d} lines, progressive loss {progressive / n:.6f}, holdout {val:.6f}")
        if n == max_batches:
            break


if __name__ == "__main__":
    main()
