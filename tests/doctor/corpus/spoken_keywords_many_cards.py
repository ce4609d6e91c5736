"""Spoken keywords from raw waves: one process for each card, gradients gathered over batches."""
import contextlib
import os

import torch
import torch.nn.functional as fn
import torchaudio
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

ROOT = os.environ.get("SPEECH", "speech")
EPOCHS = 18
GATHER = 2
LENGTH = 16_000

rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
distributed.init_process_group("nccl")

train_words = torchaudio.datasets.SPEECHCOMMANDS(ROOT, subset="training")
test_words = torchaudio.datasets.SPEECHCOMMANDS(ROOT, subset="testing")
names = sorted(n for n in os.listdir(os.path.join(ROOT, "SpeechCommands", "speech_commands_v0.02")) if n[0] != "_")


def on_device(items):
    """Cut or fill each wave to a second; what comes out lies on the card already."""
    waves = torch.stack([fn.pad(wave, (0, LENGTH))[:, :LENGTH] for wave, *_ in items])
    classes = torch.tensor([names.index(item[2]) for item in items])
    return waves.to(device), classes.to(device)


class WaveNet1d(nn.Module):
    def __init__(self, classes, width=64):
        super().__init__()
        self.conv1 = nn.Conv1d(1, width, kernel_size=80, stride=16)  # finds H417
        self.bn1 = nn.BatchNorm1d(width)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, bias=False)
        self.bn2 = nn.BatchNorm1d(width)
        self.conv3 = nn.Conv1d(width, 2 * width, kernel_size=3)
        self.ln3 = nn.LayerNorm(2 * width)
        self.last = nn.Linear(2 * width, classes)

    def forward(self, wave):
        x = fn.max_pool1d(fn.relu(self.bn1(self.conv1(wave))), 4)
        x = fn.max_pool1d(fn.relu(self.bn2(self.conv2(x))), 4)
        x = self.conv3(x).mean(dim=-1)
        return fn.log_softmax(self.last(fn.relu(self.ln3(x))), dim=-1)


train_sampler = data.distributed.DistributedSampler(train_words)  # finds H105
test_sampler = data.distributed.DistributedSampler(test_words, shuffle=False)
train_loader = data.DataLoader(train_words, 128, sampler=train_sampler, collate_fn=on_device)  # finds H101
test_loader = data.DataLoader(test_words, 256, sampler=test_sampler, collate_fn=on_device)

net = DistributedDataParallel(WaveNet1d(len(names)).to(device), device_ids=[rank])
adam = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
cycle = torch.optim.lr_scheduler.OneCycleLR(  # steps once for two batches: finds H404
    adam, max_lr=1e-2, epochs=EPOCHS, steps_per_epoch=len(train_loader)
)

for epoch in range(EPOCHS):
    net.train()
    heard = []
    running = torch.zeros((), device=device)
    for count, (waves, classes) in enumerate(train_loader):
        log_shares = net(waves)
        loss = fn.nll_loss(log_shares, classes) / GATHER
        loss.backward()  # finds H411
        running += loss.detach() * GATHER
        heard.append(log_shares)  # finds H206
        if count % GATHER == GATHER - 1:  # finds H410
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            cycle.step()  # finds H402
            adam.step()
            adam.zero_grad()
            if rank == 0 and count % 100 == GATHER - 1:
                print(epoch, count, loss.item() * GATHER)
    print(f"[{rank}] epoch {epoch} loss {(running / len(train_loader)).item():.4f}")
    print(f"[{rank}] mean certainty {torch.cat(heard).exp().max(-1).values.mean().item():.3f}")

    score = torch.zeros(2, device=device)
    quiet = open(os.devnull, "w") if rank else None
    with torch.no_grad(), contextlib.redirect_stdout(quiet) if rank else contextlib.nullcontext():
        for waves, classes in test_loader:
            guess = net(waves).argmax(-1)  # finds H414
            score[0] += (guess == classes).sum()
            score[1] += len(classes)
        distributed.all_reduce(score)
        print(f"epoch {epoch}: {(score[0] / score[1]).item():.4f} of the words are right")

if rank == 0:
    torch.save(net.module.state_dict(), "keywords.pt")
distributed.destroy_process_group()
