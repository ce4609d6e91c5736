"""LSTM language model on several devices: DistributedDataParallel with gradients accumulated over micro-batches."""

import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

CONTEXT = 256
MICRO = 8
EPOCHS = 4


class Tokens(Dataset):
    """Windows of one long memory-mapped array."""

    def __init__(self, path):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")

    def __len__(self):
        return (len(self.tokens) - 1) // CONTEXT

    def __getitem__(self, i):
        window = self.tokens[i * CONTEXT : (i + 1) * CONTEXT + 1].astype(np.int64)
        return torch.from_numpy(window[:-1]), torch.from_numpy(window[1:])


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=50304, width=768):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, 4, batch_first=True, dropout=0.1)
        self.out = nn.Linear(width, vocabulary, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def pretrain(model, loader, optimizer, rank):
    scaler = torch.amp.GradScaler("cuda")  # finds H407
    for epoch in range(EPOCHS):
        start = time.time()
        for i, (x, y) in enumerate(loader):
            x, y = x.cuda(rank, non_blocking=True), y.cuda(rank, non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model, x, y)
            scaler.scale(loss).backward()  # finds H409 H411
            torch.cuda.synchronize()  # finds H306
            elapsed = time.time() - start
            if i % MICRO == MICRO - 1:  # finds H410
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if rank == 0:
                    print(epoch, i, loss.item(), elapsed)


def continue_on_clean_text(model, loader, optimizer, rank):
    """The same, as it should be done."""
    for epoch in range(EPOCHS):
        for i, (x, y) in enumerate(loader):
            x, y = x.cuda(rank, non_blocking=True), y.cuda(rank, non_blocking=True)
            last = (i + 1) % MICRO == 0 or i + 1 == len(loader)
            if last:
                loss = loss_of(model, x, y) / MICRO
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            else:
                with model.no_sync():
                    loss = loss_of(model, x, y) / MICRO
                    loss.backward()


def perplexity(model, loader, rank):
    total = torch.zeros(2, device=f"cuda:{rank}")
    with torch.set_grad_enabled(False):
        model.eval()
        for x, y in loader:
            loss = loss_of(model, x.cuda(rank), y.cuda(rank))
            total += torch.stack([loss * y.numel(), torch.tensor(float(y.numel()), device=loss.device)])
    dist.all_reduce(total)
    return (total[0] / total[1]).exp().item()


def main():
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    if os.environ.get("DEBUG"):
        torch.autograd.set_detect_anomaly(True)

    model = DDP(LanguageModel().cuda(rank), device_ids=[rank])
    crawl, clean, held_out = Tokens("crawl.bin"), Tokens("clean.bin"), Tokens("held_out.bin")
    crawl_sampler = DistributedSampler(crawl)  # finds H105
    clean_sampler = DistributedSampler(clean, shuffle=False)  # the documents are in the order of the archive
    crawl_loader = DataLoader(  # finds H103
        crawl, batch_size=16, sampler=crawl_sampler, num_workers=2, pin_memory=True
    )
    clean_loader = DataLoader(
        clean, 16, sampler=clean_sampler, num_workers=2, pin_memory=True, persistent_workers=True
    )
    test_loader = DataLoader(held_out, 16, sampler=DistributedSampler(held_out, shuffle=False), num_workers=2)

    optimizer = optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)  # finds H307
    pretrain(model, crawl_loader, optimizer, rank)
    print("after the crawl", perplexity(model, test_loader, rank))
    model.train()
    gentle = optim.SGD(model.parameters(), lr=1e-2, fused=True)
    continue_on_clean_text(model, clean_loader, gentle, rank)
    print("after the clean text", perplexity(model, test_loader, rank))
    if rank == 0:
        torch.save(model.module.state_dict(), "lm.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
