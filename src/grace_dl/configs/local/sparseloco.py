"""SparseLoCo (arXiv:2508.15706): the largest 64 of every 4096 elements in two bits, with a residual that decays."""

from grace_dl.train import configs

configs.train.compression = "chunktopk:beta=0.95"
