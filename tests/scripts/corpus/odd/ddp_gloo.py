"""python ddp_gloo.py, or torchrun --nproc_per_node=2 ddp_gloo.py"""
import os
import socket

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def find_free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def setup():
    if "RANK" not in os.environ:  # started without torchrun
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1",
                          MASTER_ADDR="127.0.0.1", MASTER_PORT=str(find_free_port()))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return dist.get_rank(), dist.get_world_size()


def cleanup():
    dist.destroy_process_group()


def prepare(rank, world_size, batch_size=32):
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(2560, 3, 12, 12, generator=gen)
    y = x.mean((2, 3)).argmax(1)
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True, drop_last=False)
    return DataLoader(dataset, batch_size=batch_size, shuffle=False, sampler=sampler)


class ToyModel(nn.Module):
    def __init__(self):
        super(ToyModel, self).__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        return self.fc(x.mean((2, 3)))


def main():
    rank, world_size = setup()
    torch.manual_seed(0)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    dataloader = prepare(rank, world_size)
    model = ToyModel().to(device)
    model = DDP(model, device_ids=None if device.type == "cpu" else [device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss().to(device)
    for epoch in range(3):
        dataloader.sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for x, y in dataloader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / len(dataloader) / world_size:.6f}")
    if rank == 0:
        torch.save(model.module.state_dict(), "ddp_model.pt")
    dist.barrier()
    cleanup()


if __name__ == "__main__":
    main()
