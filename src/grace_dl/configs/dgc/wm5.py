"""Five warm-up epochs (or stages of `warmup_steps` steps) that end at 0.1 %."""

from grace_dl.train import configs

configs.train.compression.warmup_epochs = 5
configs.train.compression.warmup_coeff = [0.25, 0.063, 0.015, 0.004, 0.001]
