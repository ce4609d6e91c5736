"""Sentiment of reviews from the hub, an encoder of our own, two or more processes."""
import os

import torch
import torch.distributed as dist
from datasets import load_dataset
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoTokenizer

EPOCHS = 3
BATCH = 16
EVERY = 4
MAX_LEN = 256

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")


def collate(rows):
    encoded = tokenizer([r["text"] for r in rows], truncation=True, max_length=MAX_LEN, padding=True,
                        return_tensors="pt")
    encoded["labels"] = torch.tensor([r["label"] for r in rows])
    return encoded


class Encoder(nn.Module):
    def __init__(self, width=256, layers=4):
        super().__init__()
        self.words = nn.Embedding(tokenizer.vocab_size, width, padding_idx=0)
        self.places = nn.Parameter(torch.zeros(MAX_LEN, width))
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers)
        self.out = nn.Linear(width, 2)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids) + self.places[: input_ids.size(1)]
        x = self.blocks(x, src_key_padding_mask=attention_mask == 0)
        return self.out(x[:, 0])


def main():
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{rank}")
    torch.cuda.set_device(device)

    reviews = load_dataset("imdb")
    sampler = DistributedSampler(reviews["train"], shuffle=True, drop_last=True)  # finds H105
    loader = DataLoader(  # finds H101
        reviews["train"], batch_size=BATCH, sampler=sampler, collate_fn=collate, pin_memory=True
    )
    test_loader = DataLoader(reviews["test"], batch_size=4 * BATCH, collate_fn=collate)

    model = DistributedDataParallel(Encoder().to(device), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)  # finds H307
    steps = EPOCHS * -(-len(loader) // EVERY)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(EPOCHS):
        model.train()
        losses = []
        for n, batch in enumerate(loader):
            labels = batch.pop("labels").to(device)  # finds H204
            ids = batch["input_ids"].to(device, non_blocking=True)
            mask = batch["attention_mask"].to(device, non_blocking=True)
            logits = model(ids, mask)
            loss = criterion(logits, labels)
            loss.backward()  # finds H409 H411
            losses.append(loss.detach().cpu().numpy())  # finds H201
            torch.cuda.synchronize()  # finds H306
            if (n + 1) % EVERY == 0 or n + 1 == len(loader):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        if rank == 0:
            print(f"epoch {epoch}: {sum(losses) / len(loader):.4f}")

        model.eval()
        sure, right, count = 0.0, 0, 0
        with torch.no_grad():
            for batch in test_loader:
                labels = batch.pop("labels").to(device)
                logits = model(batch["input_ids"].to(device), batch["attention_mask"].to(device))
                share = torch.softmax(logits, dim=-1)
                sure += share.max(-1).values.sum().item()
                right += (share.argmax(-1) == labels).sum().item()
                count += len(labels)
        if rank == 0:
            print(f"epoch {epoch}: right {right / count:.4f}, sure {sure / count:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
