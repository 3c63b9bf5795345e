"""Settings that all shipped configs share. All keys: `grace_dl/train/schema.py`."""

import torch

from grace_dl.train import Config, configs

configs.seed = 42

configs.train.criterion = Config(torch.nn.CrossEntropyLoss)
configs.train.optimizer = Config(torch.optim.SGD, momentum=0.9)

# The learning rate is that of one rank; it grows with the number of ranks, linearly over these epochs.
configs.train.warmup_lr_epochs = 5
configs.train.schedule_lr_per_epoch = True
