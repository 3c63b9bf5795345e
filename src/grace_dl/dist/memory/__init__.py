"""The original GRACE's memories for `torch.distributed`, one module each."""
