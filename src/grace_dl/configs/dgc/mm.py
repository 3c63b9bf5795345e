"""Momentum masking: momentum is zeroed where something was sent (the default)."""

from grace_dl.train import configs

configs.train.compression.memory.momentum_masking = True
