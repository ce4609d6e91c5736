"""Pretrain a small decoder-only language model with fully sharded data parallelism."""
import functools
import os
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class Config:
    vocab: int = 32000
    width: int = 768
    depth: int = 12
    heads: int = 12
    context: int = 1024
    batch: int = 8
    epochs: int = 3
    window: int = 8
    lr: float = 3e-4
    start_from: str = ""


class Tokens(Dataset):
    def __init__(self, path, context):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.context = context

    def __len__(self):
        return (len(self.tokens) - 1) // self.context

    def __getitem__(self, i):
        piece = self.tokens[i * self.context : (i + 1) * self.context + 1].astype(np.int64)
        return torch.from_numpy(piece[:-1]), torch.from_numpy(piece[1:])


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(cfg.width), nn.LayerNorm(cfg.width)
        self.attention = nn.MultiheadAttention(cfg.width, cfg.heads, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(cfg.width, 4 * cfg.width), nn.GELU(), nn.Linear(4 * cfg.width, cfg.width))

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class LM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tokens = nn.Embedding(cfg.vocab, cfg.width)
        self.places = nn.Embedding(cfg.context, cfg.width)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.depth))
        self.head = nn.Linear(cfg.width, cfg.vocab, bias=False)

    def forward(self, ids):
        length = ids.size(1)
        mask = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        x = self.tokens(ids) + self.places(torch.arange(length, device=ids.device))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def evaluate(model, loader, device):
    model.eval()  # finds H415
    total = torch.zeros((), device=device)
    with torch.no_grad():
        for ids, following in loader:
            logits = model(ids.to(device))
            total += F.cross_entropy(logits.flatten(0, 1), following.to(device).flatten())
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    return (total / len(loader)).item()


def main():
    cfg = Config()
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False  # finds H308

    train_set, val_set = Tokens("train.bin", cfg.context), Tokens("val.bin", cfg.context)
    sampler = DistributedSampler(train_set, drop_last=True)  # finds H105
    train_loader = DataLoader(
        train_set, cfg.batch, sampler=sampler, num_workers=2, pin_memory=True, persistent_workers=True
    )
    val_loader = DataLoader(val_set, cfg.batch)

    model = LM(cfg)
    if cfg.start_from:
        model.load_state_dict(torch.load(cfg.start_from, map_location="cpu", mmap=True))  # finds H416
    wrap = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    bf16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FSDP(model, auto_wrap_policy=wrap, mixed_precision=bf16, device_id=device, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95))  # finds H307
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 500))

    model.train()
    for epoch in range(cfg.epochs):
        optimizer.zero_grad()
        for step, (ids, following) in enumerate(train_loader):
            ids = ids.to(device, non_blocking=True)
            following = following.to(device)  # finds H204
            logits = model(ids)
            loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
            loss.backward()  # finds H409
            if (step + 1) % cfg.window == 0:  # finds H410
                model.clip_grad_norm_(1.0)
                warmup.step()  # finds H402
                optimizer.step()
                optimizer.zero_grad()
            torch.cuda.synchronize()  # finds H306
            torch.cuda.empty_cache()  # finds H302
            if step % 100 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} lr {warmup.get_last_lr()[0]:.2e}")
        val = evaluate(model, val_loader, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: validation loss {val:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
