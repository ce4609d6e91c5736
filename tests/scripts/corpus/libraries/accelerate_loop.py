# After accelerate's nlp_example.py: also runs with `accelerate launch accelerate_loop.py`
import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim import AdamW
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, TensorDataset

MAX_GPU_BATCH_SIZE = 16
EVAL_BATCH_SIZE = 64


def get_dataloaders(accelerator: Accelerator, batch_size: int = 16):
    """Sequences of 12 numbers; the label says whether the largest comes before the smallest."""
    with accelerator.main_process_first():
        gen = torch.Generator().manual_seed(0)
        x = torch.rand(1600, 12, 1, generator=gen)
        y = (x.argmax(1) < x.argmin(1)).long().squeeze(1)
    train_dataloader = DataLoader(TensorDataset(x[:1280], y[:1280]), shuffle=True, batch_size=batch_size, drop_last=True)
    eval_dataloader = DataLoader(TensorDataset(x[1280:], y[1280:]), shuffle=False, batch_size=EVAL_BATCH_SIZE)
    return train_dataloader, eval_dataloader


class Tagger(torch.nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.rnn = torch.nn.LSTM(1, hidden, bidirectional=True, batch_first=True)
        self.score = torch.nn.Linear(2 * hidden, 2)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.score(out.amax(1))


def training_function(config, args):
    accelerator = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision,
                              gradient_accumulation_steps=config["accumulate"])
    set_seed(config["seed"])
    train_dataloader, eval_dataloader = get_dataloaders(accelerator, min(config["batch_size"], MAX_GPU_BATCH_SIZE))
    model = Tagger().to(accelerator.device)
    optimizer = AdamW(params=model.parameters(), lr=config["lr"])
    lr_scheduler = LinearLR(optimizer, 1.0, 0.1, total_iters=len(train_dataloader) * config["num_epochs"])
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )

    for epoch in range(config["num_epochs"]):
        model.train()
        for step, (x, y) in enumerate(train_dataloader):
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()

        model.eval()
        right, seen = 0, 0
        for step, (x, y) in enumerate(eval_dataloader):
            with torch.no_grad():
                predictions = model(x).argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, y))
            right += (predictions == references).sum().item()
            seen += len(references)
        accelerator.print(f"epoch {epoch}: loss {loss.item():.6f} accuracy {right / seen:.4f}")
    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument("--mixed_precision", type=str, default=None, choices=["no", "fp16", "bf16", "fp8"])
    parser.add_argument("--cpu", action="store_true", help="If passed, will train on the CPU.")
    args = parser.parse_args()
    config = {"lr": 5e-3, "num_epochs": 3, "seed": 42, "batch_size": 16, "accumulate": 2}
    training_function(config, args)


if __name__ == "__main__":
    main()
