import argparse, os, random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

os.environ["TOKENIZERS_PARALLELISM"] = "false"

def seed_everything(seed):
    random.seed(seed); os.environ["PYTHONHASHSEED"] = str(seed); np.random.seed(seed); torch.manual_seed(seed)

class ReviewDataset(Dataset):
    """Bags of word ids; words below 100 are nice, words above 900 are nasty."""
    def __init__(self, n, max_len=40):
        self.rows = []
        for _ in range(n):
            label = random.randint(0, 1)
            words = [random.randint(0, 999) for _ in range(random.randint(8, max_len))]
            words += [random.randint(0, 99) if label else random.randint(900, 999) for _ in range(3)]
            random.shuffle(words)
            self.rows.append((words, label))
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        return self.rows[i]

def collate(batch):
    longest = max(len(w) for w, _ in batch)
    ids = torch.full((len(batch), longest), 1000)
    for i, (words, _) in enumerate(batch):
        ids[i, :len(words)] = torch.tensor(words)
    return {"ids": ids, "mask": (ids != 1000).float(), "label": torch.tensor([l for _, l in batch])}

class TextNet(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(1001, dim, padding_idx=1000)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1)
        self.fc = nn.Linear(dim, 2)
    def forward(self, ids, mask):
        h = torch.relu(self.conv(self.emb(ids).transpose(1, 2))) * mask.unsqueeze(1)
        return self.fc(h.sum(2) / mask.sum(1, keepdim=True))

def main(args):
    seed_everything(args.seed)
    train_loader = DataLoader(ReviewDataset(1900), args.micro_batch, shuffle=True, collate_fn=collate)
    dev_loader = DataLoader(ReviewDataset(300), 100, collate_fn=collate)
    model = TextNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_fct = nn.CrossEntropyLoss()
    global_step = 0
    for epoch in range(args.epochs):
        model.train()
        tr_loss = 0.0
        for step, batch in enumerate(train_loader):
            logits = model(batch["ids"], batch["mask"])
            loss = loss_fct(logits, batch["label"])
            if args.accum > 1:
                loss = loss / args.accum
            loss.backward()
            tr_loss += loss.item()
            if (step + 1) % args.accum == 0 or step + 1 == len(train_loader):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                global_step += 1
        model.eval()
        right = 0
        for batch in dev_loader:
            with torch.no_grad():
                right += (model(batch["ids"], batch["mask"]).argmax(-1) == batch["label"]).sum().item()
        print({"epoch": epoch, "global_step": global_step, "loss": tr_loss / global_step, "dev_acc": right / 300})

if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--micro_batch", type=int, default=16)
    p.add_argument("--accum", type=int, default=4, help="gradient accumulation steps")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=42)
    main(p.parse_args())
