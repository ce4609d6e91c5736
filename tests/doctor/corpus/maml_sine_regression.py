"""Learning to learn sine waves: MAML with an inner loop, and a first-order relative for comparison."""

import copy
import sys

import numpy as np
import torch
from torch import nn
from torch.autograd import grad
from torch.func import functional_call

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rng = np.random.default_rng(0)


class Wave:
    def __init__(self):
        self.amplitude = rng.uniform(0.1, 5.0)
        self.phase = rng.uniform(0, np.pi)

    def draw(self, k):
        x = np.random.uniform(-5, 5, size=(k, 1)).astype(np.float32)
        y = np.sin(x + self.phase).astype(np.float32)
        xs = torch.tensor(x)  # finds H202
        ys = torch.from_numpy(y) * float(self.amplitude)
        return xs.to(DEVICE), ys.to(DEVICE)


def mlp():
    return nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1)).to(DEVICE)


def adapt(model, weights, x, y, steps, alpha, second_order):
    """The inner loop: gradients are taken by hand, nothing is accumulated in .grad."""
    for _ in range(steps):
        inner = nn.functional.mse_loss(functional_call(model, weights, (x,)), y)
        gradients = grad(inner, list(weights.values()), create_graph=second_order)
        weights = {name: w - alpha * g for (name, w), g in zip(weights.items(), gradients)}
    return weights


def maml(iterations=20000, meta_batch=16, alpha=0.01):
    model = mlp()
    meta = torch.optim.Adam(model.parameters(), lr=1e-3)  # finds H307
    curve, answers = [], []
    for iteration in range(iterations):
        meta_loss = 0.0
        guesses = []
        for wave in [Wave() for _ in range(meta_batch)]:
            x_support, y_support = wave.draw(10)
            x_query, y_query = wave.draw(10)
            weights = adapt(model, dict(model.named_parameters()), x_support, y_support, 1, alpha, True)
            guess = functional_call(model, weights, (x_query,))
            guesses.append(guess)
            meta_loss += nn.functional.mse_loss(guess, y_query)
        meta_loss = meta_loss / meta_batch
        meta.zero_grad()
        meta_loss.backward()
        meta.step()
        curve.append(meta_loss)  # finds H205
        answers.append(guess)  # finds H206
        sys.stdout.write(f"\r{iteration} {meta_loss.item():.4f}")  # finds H201
    return model, curve, answers


def first_order(iterations=20000, inner_steps=5, epsilon=0.1):
    """Reptile: towards the weights that some steps of SGD lead to."""
    model = mlp()
    for iteration in range(iterations):
        fast = copy.deepcopy(model)
        opt = torch.optim.SGD(fast.parameters(), lr=0.02, foreach=False)  # finds H307
        x, y = Wave().draw(20)
        with torch.autograd.detect_anomaly():  # finds H304
            for _ in range(inner_steps):
                loss = nn.functional.mse_loss(fast(x), y)
                loss.backward()
                opt.zero_grad()  # finds H401
                opt.step()
        with torch.no_grad():
            for slow, quick in zip(model.parameters(), fast.parameters()):
                slow.lerp_(quick, epsilon)
        if iteration % 1000 == 0:
            print(iteration, loss.item())
    return model


def fine_tune(model, wave, steps=10):
    """Tests what was learned; each tuned copy is thrown away."""
    tuned = copy.deepcopy(model)
    opt = torch.optim.SGD(tuned.parameters(), lr=0.01, fused=True)
    x, y = wave.draw(10)
    for _ in range(steps):
        loss = nn.functional.mse_loss(tuned(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    grid = torch.linspace(-5, 5, 200, device=DEVICE).unsqueeze(1)
    with torch.no_grad():
        return tuned(grid).squeeze(1).cpu().numpy()


def main():
    torch.manual_seed(0)
    model, curve, answers = maml()
    np.save("curve.npy", torch.stack(curve).detach().cpu().numpy())
    other = first_order()
    bias = torch.zeros(200).to(DEVICE)  # finds H203
    for name, net in {"maml": model, "reptile": other}.items():
        lines = np.stack([fine_tune(net, Wave()) for _ in range(5)])
        offset = bias + torch.as_tensor(lines, device=DEVICE).mean(0)
        np.save(f"{name}.npy", offset.cpu().numpy())


if __name__ == "__main__":
    main()
