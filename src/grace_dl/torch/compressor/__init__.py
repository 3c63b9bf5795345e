"""The original GRACE's compressors for Horovod with PyTorch, one module each."""
