"""Short runs and readings for the doctor and the tuner; nothing here is kept."""
