"""Where does the time of a step go? Trains a small network in several ways and measures them."""

import argparse
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, TensorDataset

STEPS = 300
dev = torch.device("cuda")


def network():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).to(dev)


def batches():
    data = TensorDataset(torch.randn(4096, 3, 64, 64), torch.randint(0, 10, (4096,)))
    return DataLoader(data, batch_size=64, shuffle=True, pin_memory=True)


def bare_forward(model, size=64, repeats=100):
    """No training here: what is waited for is what is measured."""
    x = torch.randn(64, 3, size, size, device=dev)
    with torch.no_grad():
        for _ in range(10):
            model(x)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            model(x)
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def timed_every_step(model, loader):
    opt = torch.optim.SGD(model.parameters(), lr=0.01)  # finds H307
    loss_fn = nn.CrossEntropyLoss()
    durations = []
    for x, y in loader:
        torch.cuda.synchronize()  # finds H306
        start = time.perf_counter()
        x, y = x.to(dev, non_blocking=True), y.to(dev, non_blocking=True)
        opt.zero_grad(set_to_none=True)
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        torch.cuda.synchronize()  # finds H306
        durations.append(time.perf_counter() - start)
        torch.cuda.empty_cache()  # finds H302
    return sum(durations) / len(durations)


def timed_sometimes(model, loader, every=50):
    opt = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    loss_fn = nn.CrossEntropyLoss()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for step, (x, y) in enumerate(loader, 1):
        x, y = x.to(dev, non_blocking=True), y.to(dev, non_blocking=True)
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        if step % every == 0:
            torch.cuda.synchronize()
            print(f"{step}: {every / (time.perf_counter() - start):.1f} steps/s, loss {loss.item():.3f}")
            start = time.perf_counter()
    torch.cuda.empty_cache()


def timed_with_events(model, loader):
    opt = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
    loss_fn = nn.CrossEntropyLoss()
    events = []
    for x, y in loader:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        opt.zero_grad()
        loss = loss_fn(model(x.to(dev, non_blocking=True)), y.to(dev, non_blocking=True))
        loss.backward()
        opt.step()
        last.record()
        events.append((first, last))
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in events]
    return sum(times) / len(times)


def traced(model, loader, folder):
    opt = torch.optim.Adam(model.parameters(), fused=False)  # finds H307
    loss_fn = nn.CrossEntropyLoss()
    plan = schedule(wait=2, warmup=2, active=6, repeat=1)
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    watch = profile(activities=kinds, schedule=plan, on_trace_ready=tensorboard_trace_handler(folder))
    with watch if folder else nullcontext() as prof:
        for step, (x, y) in enumerate(loader):
            x = x.to(dev)  # finds H204
            y = y.to(dev)  # finds H204
            opt.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            opt.step()
            print(f"\r{step} {loss:.4f}", end="")  # finds H201
            if prof is not None:
                prof.step()
            if step == STEPS:
                break


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", default=None)
    parser.add_argument("--exact", action="store_true")
    args = parser.parse_args()
    if args.exact:
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    loader = batches()
    model = network()
    print("forward", bare_forward(model))
    print("each step", timed_every_step(model, loader))
    timed_sometimes(model, loader)
    torch.backends.cudnn.benchmark = False  # finds H301
    print("events", timed_with_events(model, loader))
    traced(network(), loader, args.trace)


if __name__ == "__main__":
    main()
