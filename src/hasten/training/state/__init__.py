"""What the next step depends on: declared state, averages, snapshots, and the state that is saved."""
