"""A transformer for translation with a warm-up and inverse-square-root schedule for each step."""

import argparse
import math
import os

import sentencepiece as spm
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PAD, BOS, EOS = 0, 1, 2
device = torch.device("cuda")


class Parallel(Dataset):
    """Sentence pairs, encoded once and held in memory."""

    def __init__(self, source, target, model):
        sp = spm.SentencePieceProcessor(model_file=model)
        with open(source) as a, open(target) as b:
            self.pairs = [(sp.encode(s), sp.encode(t)) for s, t in zip(a, b)]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


def collate(pairs):
    src = pad_sequence([torch.tensor(s + [EOS]) for s, _ in pairs], batch_first=True, padding_value=PAD)
    tgt = pad_sequence([torch.tensor([BOS] + t + [EOS]) for _, t in pairs], batch_first=True, padding_value=PAD)
    return src, tgt


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=1024):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        table = torch.zeros(max_len, d_model)
        table[:, 0::2] = torch.sin(position * div)
        table[:, 1::2] = torch.cos(position * div)
        self.register_buffer("table", table)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(x + self.table[: x.size(1)])


class Translator(nn.Module):
    def __init__(self, vocabulary, d_model=512, layers=6):
        super().__init__()
        self.d_model = d_model
        self.embed = nn.Embedding(vocabulary, d_model, padding_idx=PAD)
        self.positions = PositionalEncoding(d_model)
        self.core = nn.Transformer(d_model, 8, layers, layers, 2048, batch_first=True)
        self.project = nn.Linear(d_model, vocabulary)

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=tgt.device)
        scale = math.sqrt(self.d_model)
        out = self.core(
            self.positions(self.embed(src) * scale),
            self.positions(self.embed(tgt) * scale),
            tgt_mask=mask,
            src_key_padding_mask=src == PAD,
        )
        return self.project(out)


def noam(d_model, warmup):
    return lambda step: d_model**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)


def pretrain(model, loader, criterion, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)  # finds H307
    scheduler = LambdaLR(optimizer, noam(512, 4000))
    scaler = torch.cuda.amp.GradScaler()  # finds H407 H408
    step = 0
    for epoch in range(epochs):
        model.train()
        for src, tgt in loader:
            src, tgt = src.to(device, non_blocking=True), tgt.to(device, non_blocking=True)
            with torch.cuda.amp.autocast(dtype=torch.bfloat16):  # finds H408
                logits = model(src, tgt[:, :-1])
                loss = criterion(logits.flatten(0, 1), tgt[:, 1:].flatten())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            clip_grad_norm_(model.parameters(), 1.0)  # finds H405
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            step += 1
            if step % 200 == 0:
                print(f"{epoch} {step} loss {loss.item():.3f} lr {scheduler.get_last_lr()[0]:.2e}")


def finetune(model, loader, criterion, parts=4):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, fused=True)
    scheduler = OneCycleLR(optimizer, max_lr=3e-5, epochs=5, steps_per_epoch=len(loader))  # finds H404
    for epoch in range(8):
        total = torch.zeros((), device=device)
        for i, (src, tgt) in enumerate(loader, 1):
            src = src.to(device, non_blocking=True)
            tgt = tgt.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = criterion(model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten()) / parts
                loss.backward()  # finds H406 H411
            if i % parts == 0 or i == len(loader):
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()
            total += loss.detach()
        print(epoch, total.item() * parts / len(loader))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_float32_matmul_precision("high")
    data = Parallel("train.de", "train.en", "joint.model")
    sampler = DistributedSampler(data, drop_last=True)  # finds H105
    loader = DataLoader(data, args.batch, False, sampler, collate_fn=collate, num_workers=4, pin_memory=True,
                        persistent_workers=True)
    model = DistributedDataParallel(Translator(32000).to(device))
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    pretrain(model, loader, criterion, args.epochs)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "pretrained.pt")
    finetune(model, loader, criterion)


if __name__ == "__main__":
    main()
