"""Accepted for compatibility: indices are always coded in 9 to 13 bits."""

from grace_dl.train import configs

configs.train.compression.int32_indices = True
