"""The original GRACE's names for `torch.distributed`."""
