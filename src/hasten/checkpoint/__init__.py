"""The only code that writes to disk: files, locks and private folders, and the format of checkpoints."""
