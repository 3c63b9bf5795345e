"""Five epochs without compression, then 0.1 %."""

from grace_dl.train import configs

configs.train.compression.warmup_epochs = 5
configs.train.compression.warmup_coeff = [1, 1, 1, 1, 1]
