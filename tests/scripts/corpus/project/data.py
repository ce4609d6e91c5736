import torch
from torch.utils.data import DataLoader, Dataset

from config import DataConfig


class RandomGraphs(Dataset):
    """Is the graph connected? Given as a dense adjacency matrix."""

    def __init__(self, cfg: DataConfig):
        gen = torch.Generator().manual_seed(cfg.seed)
        upper = torch.rand(cfg.n_graphs, cfg.n_nodes, cfg.n_nodes, generator=gen) < 0.2
        upper = upper.triu(1)
        self.adj = (upper | upper.transpose(1, 2)).float()
        reach = self.adj + torch.eye(cfg.n_nodes)
        for _ in range(4):
            reach = (reach @ reach).clamp(max=1)
        self.label = (reach[:, 0].sum(1) == cfg.n_nodes).long()

    def __len__(self):
        return len(self.adj)

    def __getitem__(self, i):
        return {"adj": self.adj[i], "label": self.label[i]}


def build_dataloader(dataset, cfg: DataConfig, train: bool):
    return DataLoader(
        dataset,
        batch_size=cfg.batch_size if train else 200,
        shuffle=train,
        num_workers=0,
        drop_last=train,
    )
