"""DiLoCo with differences in 4 bits (arXiv:2311.08105): an outer SGD with Nesterov momentum applies their average."""

from grace_dl.train import configs

configs.train.compression = "int4"
configs.train.local.outer_lr = 0.7
configs.train.local.outer_momentum = 0.9
