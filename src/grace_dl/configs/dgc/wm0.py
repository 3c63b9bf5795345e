"""No warm-up: 0.1 % from the first step."""

from grace_dl.train import configs

configs.train.compression.warmup_epochs = 0
