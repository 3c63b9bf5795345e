"""Streaming DiLoCo (arXiv:2501.18512): three parts of the model take turns, and an exchange travels for five steps."""

from grace_dl.train import configs

configs.train.compression = "int4"
configs.train.local.outer_lr = 0.7
configs.train.local.outer_momentum = 0.9
configs.train.local.fragments = 3
configs.train.local.delay = 5
configs.train.local.merge = 0.5
