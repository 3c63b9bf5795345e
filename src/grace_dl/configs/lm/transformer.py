from grace_dl.train import Config, configs, later
from grace_dl.train.models import transformer

configs.model = Config(
    transformer, num_classes=configs.dataset.num_classes, width=192, layers=4, heads=6, dropout=0.1
)
configs.model.length = later(lambda: configs.dataset.length)

configs.train.optimizer.lr = 0.05
configs.train.optimizer.weight_decay = 1e-4
