"""A character model over one long text, read as a stream, in bfloat16."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as fun
from torch.utils.data import DataLoader as DL
from torch.utils.data import IterableDataset

ACC = 4
WINDOW = 128
device = torch.device("cuda:0")
torch.autograd.set_detect_anomaly(True)  # left over from the NaN hunt: finds H304


class Windows(IterableDataset):
    """Random windows of the text, without end until `count` were given."""

    def __init__(self, path, count):
        with open(path, encoding="utf-8") as handle:
            text = handle.read()
        self.alphabet = sorted(set(text))
        index = {c: i for i, c in enumerate(self.alphabet)}
        self.codes = torch.tensor([index[c] for c in text])
        self.count = count

    def __iter__(self):
        for _ in range(self.count):
            at = random.randrange(len(self.codes) - WINDOW - 1)
            yield self.codes[at:at + WINDOW], self.codes[at + 1:at + WINDOW + 1]


class CharModel(nn.Module):
    def __init__(self, letters, width=512):
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(letters, width)
        self.cell = nn.GRUCell(width, width)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(width, letters)

    def forward(self, codes):
        steps = self.embed(codes)
        state = torch.zeros(len(codes), self.width).to(codes.device)  # finds H203
        states = []
        for t in range(steps.size(1)):
            state = self.cell(steps[:, t], state)
            states.append(state)
        return self.out(self.drop(torch.stack(states, dim=1)))

    @torch.no_grad()
    def sample(self, first, length):
        state = torch.zeros(1, self.width, device=first.device)
        code, letters = first, []
        for _ in range(length):
            state = self.cell(self.embed(code), state)
            code = torch.multinomial(self.out(state).float().softmax(-1), 1).squeeze(1)
            letters.append(code.item())
        return letters


data = Windows("novel.txt", count=20_000)
loader = DL(data, batch_size=64)  # finds H102
model = CharModel(len(data.alphabet)).to(device)
adamw = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), foreach=False)  # finds H307
scaler = torch.amp.GradScaler("cuda")  # bfloat16 needs no scaling: finds H407

for epoch in range(10):
    model.train()
    recent = torch.zeros((), device=device)
    for step, (codes, following) in enumerate(loader):
        codes, following = codes.to(device), following.to(device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(codes)
            loss = fun.cross_entropy(logits.flatten(0, 1), following.flatten())
            scaler.scale(loss / ACC).backward()  # finds H406
        recent += loss.detach()
        if (step + 1) % ACC == 0:  # finds H410
            scaler.unscale_(adamw)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(adamw)
            scaler.update()
            adamw.zero_grad(set_to_none=True)
        if step % 100 == 99:
            print(f"epoch {epoch} step {step}: {recent.item() / 100:.3f}")
            recent.zero_()

    model.eval()
    letters = model.sample(torch.zeros(1, dtype=torch.long, device=device), 200)
    print("".join(data.alphabet[i] for i in letters))
