"""Policy gradient with a critic for a pole on a cart that is computed right here, on the CPU."""
import argparse
from collections import deque

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.autograd.set_detect_anomaly(True)  # finds H304


class Cart:
    """A pole on a cart: four numbers of state, two actions, a reward of one for each step that it stands."""

    def __init__(self, rng, limit=500):
        self.rng, self.limit = rng, limit

    def reset(self):
        self.state = self.rng.uniform(-0.05, 0.05, size=4)
        self.age = 0
        return self.state

    def step(self, action):
        x, v, a, w = self.state
        force = 10.0 if action == 1 else -10.0
        pull = (force + 0.05 * w * w * np.sin(a)) / 1.1
        turn = (9.8 * np.sin(a) - np.cos(a) * pull) / (0.5 * (4 / 3 - 0.1 * np.cos(a) ** 2 / 1.1))
        push = pull - 0.05 * turn * np.cos(a) / 1.1
        self.state = np.array([x + 0.02 * v, v + 0.02 * push, a + 0.02 * w, w + 0.02 * turn])
        self.age += 1
        fallen = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21
        return self.state, 1.0, fallen or self.age >= self.limit


def mlp(outputs):
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, outputs))


def discounted(rewards, gamma):
    back, result = 0.0, []
    for reward in reversed(rewards):
        back = reward + gamma * back
        result.insert(0, back)
    return torch.tensor(result, dtype=torch.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=800)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()

    rng = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    cart = Cart(rng)
    actor, critic = mlp(2), mlp(1)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=3e-3)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-2)
    scale = np.array([1.0, 2.0, 10.0, 2.0])
    scores = deque(maxlen=50)
    critic_losses = []

    for episode in range(args.episodes):
        log_probs, values, rewards = [], [], []
        state, done = cart.reset(), False
        while not done:
            scaled = np.asarray(state * scale, dtype=np.float32)
            seen = torch.tensor(scaled)  # finds H202
            choice = Categorical(logits=actor(seen))
            action = choice.sample()
            log_probs.append(choice.log_prob(action))
            values.append(critic(seen).squeeze(-1))
            state, reward, done = cart.step(action.item())
            rewards.append(reward)

        returns = discounted(rewards, args.gamma)
        guessed = torch.stack(values)
        chosen = torch.stack(log_probs)
        advantage = returns - guessed.detach()

        parts = []
        for i in range(len(advantage)):  # finds H207
            parts.append(-chosen[i] * advantage[i])
        actor_loss = torch.stack(parts).mean()
        actor_opt.zero_grad(set_to_none=False)  # finds H303
        actor_loss.backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
        actor_opt.step()

        critic_loss = nn.functional.mse_loss(guessed, returns)
        critic_loss.backward()
        critic_opt.step()  # nobody clears the critic: finds H401
        critic_losses.append(critic_loss)  # finds H205

        scores.append(sum(rewards))
        if episode % 20 == 0:
            print(f"{episode:4d}  mean score {np.mean(scores):6.1f}  actor {actor_loss.item():.3f}")
        if len(scores) == 50 and np.mean(scores) > 475:
            print("stands")
            break

    print("critic at the end:", torch.stack(critic_losses)[-20:].mean().item())


if __name__ == "__main__":
    main()
