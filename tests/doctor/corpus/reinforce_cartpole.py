"""REINFORCE with a learned baseline on CartPole; everything stays on the processor."""
import argparse
from collections import deque

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical
from torch.optim import Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR


class Policy(nn.Module):
    def __init__(self, n_in, n_actions, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_in, hidden), nn.Tanh(), nn.Linear(hidden, n_actions))

    def forward(self, s):
        return Categorical(logits=self.net(s))


def play(env, policy):
    """One episode: the states, what was done, and what came back."""
    obs, _ = env.reset()
    states, log_probs, rewards = [], [], []
    done = False
    while not done:
        dist = policy(torch.from_numpy(obs))
        action = dist.sample()
        states.append(obs)
        log_probs.append(dist.log_prob(action))
        obs, reward, terminated, truncated, _ = env.step(action.item())
        rewards.append(reward)
        done = terminated or truncated
    return states, log_probs, rewards


def discounted(rewards, gamma):
    out = deque()
    running = 0.0
    for r in reversed(rewards):
        running = r + gamma * running
        out.appendleft(running)
    return torch.tensor(list(out), dtype=torch.float32)


def average_return(env, policy, episodes=10):
    policy.eval()
    with torch.no_grad():
        totals = [sum(play(env, policy)[2]) for _ in range(episodes)]
    policy.train()
    return float(np.mean(totals))


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--episodes", type=int, default=1500)
    cli.add_argument("--gamma", type=float, default=0.99)
    cli.add_argument("--check-nan", action="store_true")
    args = cli.parse_args()
    if args.check_nan:
        torch.autograd.set_detect_anomaly(True)

    env = gym.make("CartPole-v1")
    policy = Policy(env.observation_space.shape[0], env.action_space.n)
    critic = nn.Sequential(nn.Linear(env.observation_space.shape[0], 64), nn.Tanh(), nn.Linear(64, 1))
    policy_opt = Adam(policy.parameters(), lr=3e-3)
    critic_opt = Adam(critic.parameters(), lr=1e-2)
    decay = StepLR(policy_opt, step_size=500, gamma=0.5)
    plateau = ReduceLROnPlateau(critic_opt, mode="min", patience=50)

    critic_total = 0.0
    lengths = deque(maxlen=100)
    for episode in range(1, args.episodes + 1):
        states, log_probs, rewards = play(env, policy)
        lengths.append(len(rewards))
        returns = discounted(rewards, args.gamma)
        states = np.stack(states)
        values = critic(torch.tensor(states)).squeeze(1)  # finds H202
        advantages = returns - values.detach()

        terms = []
        for i in range(len(advantages)):  # finds H207
            terms.append(-log_probs[i] * advantages[i])
        policy_loss = torch.stack(terms).sum()
        with torch.autograd.detect_anomaly():  # finds H304
            policy_loss.backward()
        policy_opt.zero_grad()  # finds H401
        policy_opt.step()
        decay.step()

        critic_loss = F.mse_loss(values, returns)
        critic_opt.zero_grad()
        critic_loss.backward()
        nn.utils.clip_grad_norm_(critic.parameters(), 0.5)
        critic_opt.step()
        plateau.step()  # finds H403
        critic_total += critic_loss  # finds H205

        print(f"{episode} {len(rewards)} {policy_loss.item():.2f}", end="\r")
        if episode % 100 == 0:
            mean = critic_total.item() / episode
            score = average_return(env, policy)
            print(f"{episode}: length {np.mean(lengths):.1f}, critic {mean:.3f}, policy {score:.1f}")
            if score > 475:
                break
    torch.save(policy.state_dict(), "cartpole_policy.pt")


if __name__ == "__main__":
    main()
