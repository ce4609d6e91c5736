"""What one optimizer step is made of; their order is in training/step.py."""
