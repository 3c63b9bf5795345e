"""Deep gradient compression at 0.1 %: momentum moves from the optimizer to the memory (Lin 2018)."""

from grace_dl.compat.dgc import DGCSGD, DGCCompressor, DGCSGDMemory
from grace_dl.train import Config, configs, later

configs.train.dgc = True
configs.train.compression = Config(
    DGCCompressor,
    compress_ratio=0.001,
    sample_ratio=0.01,
    strided_sample=True,
    compress_upper_bound=1.3,
    compress_lower_bound=0.8,
    max_adaptation_iters=10,
    resample=True,
    fp16_values=False,
    int32_indices=False,
    warmup_epochs=0,
    warmup_coeff=None,
    warmup_steps=0,
)

if configs.train.optimizer is not None:
    configs.train.optimizer = configs.train.optimizer.retarget(DGCSGD)

# Taken from the optimizer last, so that command-line overrides apply here too.
configs.train.compression.memory = Config(DGCSGDMemory, momentum_masking=True)
configs.train.compression.memory.momentum = later(lambda: configs.train.optimizer.get("momentum", 0.0))
configs.train.compression.memory.nesterov = later(lambda: configs.train.optimizer.get("nesterov", False))

# The exchanged values include momentum and residuals, so each rank's local gradients are clipped instead.
configs.train.compression.memory.gradient_clipping = configs.train.clip_grad_norm
configs.train.clip_grad_norm = None
