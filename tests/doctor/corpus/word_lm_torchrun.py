"""Word-level language model over several cards; started by torchrun."""
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as fun
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

CONTEXT, EPOCHS, WINDOW = 256, 5, 8


class Chunks(Dataset):
    def __init__(self, path):
        self.ids = torch.load(path)  # finds H416

    def __len__(self):
        return (len(self.ids) - 1) // CONTEXT

    def __getitem__(self, k):
        s = k * CONTEXT
        return self.ids[s:s + CONTEXT], self.ids[s + 1:s + CONTEXT + 1]


class Decoder(nn.Module):
    def __init__(self, vocab, width=512, depth=6):
        super().__init__()
        self.word = nn.Embedding(vocab, width)
        self.place = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True) for _ in range(depth))
        self.out = nn.Linear(width, vocab)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1)).to(ids.device)
        h = self.word(ids) + self.place(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            h = block(h, src_mask=mask)
        return self.out(h)


def join():
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def train_loader(path):
    data = Chunks(path)
    sampler = DistributedSampler(data)  # finds H105
    return DataLoader(data, batch_size=16, sampler=sampler, pin_memory=True, drop_last=True)


def valid_loader(path):
    data = Chunks(path)
    return DataLoader(data, batch_size=16, sampler=DistributedSampler(data, shuffle=False), pin_memory=True)


def loss_of(net, batch, device):
    ids, nxt = (t.to(device, non_blocking=True) for t in batch)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = net(ids)
        return fun.cross_entropy(logits.flatten(0, 1), nxt.flatten())


def accumulate(net, scaler, batch, device):
    loss = loss_of(net, batch, device)
    scaler.scale(loss).backward()  # finds H409 H411
    return loss.detach()


def advance(net, opt, scaler):
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # finds H405
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()


def train_epoch(net, loader, opt, scaler, device):
    net.train()
    total = torch.zeros((), device=device)
    for i, batch in enumerate(loader):
        total += accumulate(net, scaler, batch, device)
        if (i + 1) % WINDOW == 0:  # finds H410
            advance(net, opt, scaler)
    return (total / len(loader)).item()


@torch.inference_mode()
def perplexity(net, loader, device):
    net.eval()
    total = torch.zeros((), device=device)
    for batch in loader:
        total += loss_of(net, batch, device)
    dist.all_reduce(total)
    return math.exp(total.item() / (len(loader) * dist.get_world_size()))


def main():
    device = join()
    train, valid = train_loader("wiki_train.pt"), valid_loader("wiki_valid.pt")
    net = DDP(Decoder(32000).to(device), device_ids=[device.index])
    opt = torch.optim.AdamW(net.parameters(), lr=3e-4, betas=(0.9, 0.95), foreach=False)  # finds H307
    scaler = torch.amp.GradScaler("cuda")  # finds H407
    for epoch in range(EPOCHS):
        loss = train_epoch(net, train, opt, scaler, device)
        ppl = perplexity(net, valid, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.3f}, valid perplexity {ppl:.2f}")
            torch.save(net.module.state_dict(), "word_lm.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
