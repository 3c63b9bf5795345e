"""Any method by its text: --configs.train.compression topk:0.01, or powersgd:rank=4,start_iter=100"""

from grace_dl.train import configs

configs.train.compression = "none"
