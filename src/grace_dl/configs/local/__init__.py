"""Local steps: workers train alone, and exchange the change of their parameters every 30 steps. See docs/local_steps.md.

The method is `configs.train.compression`; add a file of this folder to those of a task, after them:
    grace train -np 4 --configs configs/lm/transformer.py configs/lm/adamw.py configs/local/diloco.py
"""

from grace_dl.train import configs
from grace_dl.train.schema import LocalSettings

configs.train.local = LocalSettings(every=30)

# A local step sees the batch of one worker, so the rate does not grow with their number.
configs.train.scale_lr = False
