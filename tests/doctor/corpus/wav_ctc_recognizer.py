"""Speech recognition with CTC from a folder of WAV files; the batch is made larger by accumulation."""

import csv
from dataclasses import dataclass
from pathlib import Path

import torch
import torchaudio
from torch import nn
from torch.cuda import amp
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

ALPHABET = " abcdefghijklmnopqrstuvwxyz'"
ACCUMULATE = 4


@dataclass
class Options:
    root: str = "clips"
    epochs: int = 25
    batch: int = 8
    hidden: int = 384


class Clips(Dataset):
    def __init__(self, root, split):
        self.root = Path(root)
        with open(self.root / f"{split}.tsv", newline="") as f:
            self.rows = list(csv.reader(f, delimiter="\t"))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        name, sentence = self.rows[i]
        wave, rate = torchaudio.load(str(self.root / name))
        wave = torchaudio.functional.resample(wave, rate, 16000)
        return wave[0], torch.tensor([ALPHABET.index(c) + 1 for c in sentence.lower() if c in ALPHABET])


def pad(batch):
    waves, texts = zip(*batch)
    wave_lengths = torch.tensor([len(w) for w in waves])
    text_lengths = torch.tensor([len(t) for t in texts])
    return pad_sequence(waves, True), pad_sequence(texts, True), wave_lengths, text_lengths


class Recognizer(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.mel = torchaudio.transforms.MelSpectrogram(16000, n_mels=80, hop_length=160)
        self.conv = nn.Conv1d(80, hidden, 5, stride=2, padding=2)  # finds H417
        self.bn = nn.BatchNorm1d(hidden)
        self.rnn = nn.LSTM(hidden, hidden, 3, batch_first=True, bidirectional=True, dropout=0.2)
        self.out = nn.Linear(2 * hidden, len(ALPHABET) + 1)

    def forward(self, wave):
        x = torch.log(self.mel(wave) + 1e-6)
        x = torch.relu(self.bn(self.conv(x)))
        x, _ = self.rnn(x.transpose(1, 2))
        return self.out(x).log_softmax(-1)


def greedy(log_probs, length):
    best = log_probs.argmax(-1).tolist()[:length]
    kept = [b for i, b in enumerate(best) if b and (i == 0 or b != best[i - 1])]
    return "".join(ALPHABET[b - 1] for b in kept)


def validate(model, loader, device):
    model.eval()  # finds H415
    right = total = 0
    for waves, texts, wave_lengths, text_lengths in loader:
        log_probs = model(waves.to(device))  # finds H413
        frames = (wave_lengths // 320).tolist()
        for i in range(len(log_probs)):
            said = "".join(ALPHABET[c - 1] for c in texts[i, : text_lengths[i]].tolist())
            right += said == greedy(log_probs[i], frames[i])
            total += 1
    return right / total


def main(options=Options()):
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(  # finds H101 H102
        Clips(options.root, "train"), batch_size=options.batch, shuffle=True, collate_fn=pad, drop_last=True
    )
    dev_loader = DataLoader(Clips(options.root, "dev"), batch_size=options.batch, collate_fn=pad)
    model = Recognizer(options.hidden).to(device)
    # what the network gives are log-probabilities already, and CTC wants them so
    ctc = nn.CTCLoss(zero_infinity=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)  # finds H307
    plateau = ReduceLROnPlateau(optimizer, patience=2)
    scaler = amp.GradScaler()  # finds H408
    model.train()
    for epoch in range(options.epochs):
        bar = tqdm(train_loader)
        for i, (waves, texts, wave_lengths, text_lengths) in enumerate(bar):
            waves, texts = waves.to(device), texts.to(device)
            with amp.autocast():  # finds H408
                log_probs = model(waves).transpose(0, 1)
                loss = ctc(log_probs.float(), texts, wave_lengths // 320, text_lengths)
            scaler.scale(loss).backward()  # finds H409
            bar.set_postfix(loss=loss.item(), longest=int(wave_lengths.max()))  # finds H201
            if (i + 1) % ACCUMULATE == 0:  # finds H410
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        plateau.step()  # finds H403
        print(f"epoch {epoch}: {validate(model, dev_loader, device):.3f} of the sentences are right")
    torch.save(model.state_dict(), "recognizer.pt")


if __name__ == "__main__":
    main()
