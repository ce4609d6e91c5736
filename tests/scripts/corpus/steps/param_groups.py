# MAE-style fine-tuning on patches of digits: layer-wise lr decay, no weight decay for 1-d params,
# and the learning rate set by hand in param_groups at every iteration.
import argparse
import math
import sys

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def get_args_parser():
    parser = argparse.ArgumentParser("fine-tuning for digits", add_help=False)
    parser.add_argument("--batch_size", default=64, type=int)
    parser.add_argument("--epochs", default=4, type=int)
    parser.add_argument("--blr", type=float, default=8e-3, help="base learning rate: lr = blr * batch_size / 256")
    parser.add_argument("--min_lr", type=float, default=1e-6)
    parser.add_argument("--layer_decay", type=float, default=0.75)
    parser.add_argument("--weight_decay", type=float, default=0.05)
    parser.add_argument("--warmup_epochs", type=int, default=1)
    return parser


class ViT(nn.Module):
    def __init__(self, dim=48, depth=3, heads=4):
        super().__init__()
        self.patch_embed = nn.Linear(4, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, dim * 4, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, x):
        x = x.unfold(1, 2, 2).unfold(2, 2, 2).reshape(len(x), 16, 4)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), self.patch_embed(x)], 1) + self.pos_embed
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x)[:, 0])


def param_groups_lrd(model, weight_decay, layer_decay):
    num_layers = len(model.blocks) + 1
    scales = [layer_decay ** (num_layers - i) for i in range(num_layers + 1)]
    groups = {}
    for n, p in model.named_parameters():
        if not p.requires_grad:
            continue
        decay = "no_decay" if p.ndim == 1 or n.endswith(("token", "pos_embed")) else "decay"
        layer = int(n.split(".")[1]) + 1 if n.startswith("blocks") else num_layers if n.startswith(("norm", "head")) else 0
        group = groups.setdefault(f"layer_{layer}_{decay}", {
            "lr_scale": scales[layer], "weight_decay": 0.0 if decay == "no_decay" else weight_decay, "params": []})
        group["params"].append(p)
    return list(groups.values())


def adjust_learning_rate(optimizer, epoch, args):
    """Decay the learning rate with half-cycle cosine after warmup"""
    if epoch < args.warmup_epochs:
        lr = args.lr * epoch / args.warmup_epochs
    else:
        done = (epoch - args.warmup_epochs) / (args.epochs - args.warmup_epochs)
        lr = args.min_lr + (args.lr - args.min_lr) * 0.5 * (1.0 + math.cos(math.pi * done))
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr * param_group.get("lr_scale", 1.0)
    return lr


def train_one_epoch(model, criterion, data_loader, optimizer, epoch, args):
    model.train(True)
    for data_iter_step, (samples, targets) in enumerate(data_loader):
        lr = adjust_learning_rate(optimizer, data_iter_step / len(data_loader) + epoch, args)
        loss = criterion(model(samples), targets)
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            print("Loss is {}, stopping training".format(loss_value))
            sys.exit(1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"Epoch: [{epoch}] lr: {lr:.6f} loss: {loss_value:.6f}")


def main(args):
    torch.manual_seed(0)
    digits = load_digits()
    dataset = TensorDataset(torch.tensor(digits.images).float() / 16, torch.tensor(digits.target))
    data_loader_train = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = ViT()
    args.lr = args.blr * args.batch_size / 256
    optimizer = torch.optim.AdamW(param_groups_lrd(model, args.weight_decay, args.layer_decay), lr=args.lr)
    # the temperature of the loss is learnt as well, with a group of its own
    log_temp = nn.Parameter(torch.zeros(()))
    optimizer.add_param_group({"params": [log_temp], "weight_decay": 0.0})
    criterion = lambda logits, y: nn.functional.cross_entropy(logits * log_temp.exp(), y)
    print("number of param groups:", len(optimizer.param_groups))
    for epoch in range(args.epochs):
        train_one_epoch(model, criterion, data_loader_train, optimizer, epoch, args)


if __name__ == "__main__":
    main(get_args_parser().parse_args())
