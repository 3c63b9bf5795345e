"""No momentum masking."""

from grace_dl.train import configs

configs.train.compression.memory.momentum_masking = False
