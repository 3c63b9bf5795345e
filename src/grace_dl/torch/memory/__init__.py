"""The original GRACE's memories for Horovod with PyTorch, one module each."""
