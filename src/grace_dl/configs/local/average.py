"""Plain averages of the parameters, uncompressed (local SGD)."""

from grace_dl.train import configs

configs.train.compression = "none"
