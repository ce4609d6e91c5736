import torch
from torch import nn

from config import ModelConfig


class GraphConv(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.own = nn.Linear(dim, dim)
        self.others = nn.Linear(dim, dim, bias=False)

    def forward(self, h, adj):
        return torch.relu(self.own(h) + self.others(adj @ h))


class GraphNet(nn.Module):
    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.start = nn.Linear(2, cfg.hidden)
        self.convs = nn.ModuleList([GraphConv(cfg.hidden) for _ in range(cfg.layers)])
        self.readout = nn.Linear(cfg.hidden, 2)

    def forward(self, adj):
        degree = adj.sum(-1, keepdim=True)
        h = self.start(torch.cat([degree, (degree == 0).float()], -1))
        norm = adj / degree.clamp(min=1)
        for conv in self.convs:
            h = h + conv(h, norm)
        return self.readout(h.mean(1))
