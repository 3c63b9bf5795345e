"""AdamW instead of SGD, at the same rate on any number of workers; the usual choice for transformers and for local steps."""

import torch

from grace_dl.train import Config, configs

configs.train.optimizer = Config(torch.optim.AdamW, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
configs.train.scale_lr = False
