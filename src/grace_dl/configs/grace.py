"""Any method by name: --configs.train.compression.compressor powersgd --configs.train.compression.rank 4"""

from grace_dl.train import Config, configs
from grace_dl.train.gradients import grace

configs.train.compression = Config(grace, compressor="none")
