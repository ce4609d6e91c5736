import sys

import torch
from torch.utils.data import random_split

from config import Config
from data import RandomGraphs, build_dataloader
from model import GraphNet


def run_epoch(model, loader, optimizer=None):
    training = optimizer is not None
    model.train(training)
    loss_sum, right, count = 0.0, 0, 0
    with torch.set_grad_enabled(training):
        for batch in loader:
            logits = model(batch["adj"])
            loss = torch.nn.functional.cross_entropy(logits, batch["label"])
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            n = len(batch["label"])
            loss_sum += loss.item() * n
            right += (logits.argmax(1) == batch["label"]).sum().item()
            count += n
    return loss_sum / count, right / count


def main():
    cfg = Config.from_cli(sys.argv[1:])
    print(cfg)
    torch.manual_seed(cfg.data.seed)
    train_set, test_set = random_split(RandomGraphs(cfg.data), [1000, 200])
    train_loader = build_dataloader(train_set, cfg.data, train=True)
    test_loader = build_dataloader(test_set, cfg.data, train=False)
    model = GraphNet(cfg.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        train_loss, train_acc = run_epoch(model, train_loader, optimizer)
        test_loss, test_acc = run_epoch(model, test_loader)
        print(f"{epoch}: train {train_loss:.6f} {train_acc:.3f}  test {test_loss:.6f} {test_acc:.3f}")


if __name__ == "__main__":
    main()
