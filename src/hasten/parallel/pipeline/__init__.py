"""Several ranks hold the model one stage after the other (torch.distributed.pipelining)."""
