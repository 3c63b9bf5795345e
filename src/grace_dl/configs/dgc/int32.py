"""For scripts that name it: indices are coded in 9 to 13 bits, smaller than 32, with or without it."""

from grace_dl.train import configs

configs.train.compression.int32_indices = True
