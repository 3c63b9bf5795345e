"""Synthetic samples of any shape: --configs.dataset.shape "[1, 28, 28]"."""

from grace_dl.train import Config, configs, later
from grace_dl.train.datasets import Synthetic
from grace_dl.train.models import mlp

configs.dataset = Config(Synthetic, shape=[3, 32, 32], num_classes=10, size=4096, test_size=1024, noise=2.0)
configs.model = Config(mlp, width=256, depth=2)
configs.model.shape = later(lambda: configs.dataset.shape)
configs.model.num_classes = later(lambda: configs.dataset.num_classes)

configs.train.num_epochs = 5
configs.train.batch_size = 64
configs.train.optimizer.lr = 0.01
configs.train.optimizer.weight_decay = 1e-4
configs.train.warmup_lr_epochs = 1
