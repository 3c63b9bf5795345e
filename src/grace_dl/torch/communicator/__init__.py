"""The original GRACE's communicators for Horovod with PyTorch, one module each."""
