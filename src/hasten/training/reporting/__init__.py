"""What a run reports while it trains: log lines, loss spikes, metric files."""
