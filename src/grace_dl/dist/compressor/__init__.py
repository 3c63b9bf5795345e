"""The original GRACE's compressors for `torch.distributed`, one module each."""
