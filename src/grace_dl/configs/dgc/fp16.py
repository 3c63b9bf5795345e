"""Send values as float16."""

from grace_dl.train import configs

configs.train.compression.fp16_values = True
