"""The original GRACE's communicators for `torch.distributed`, one module each."""
