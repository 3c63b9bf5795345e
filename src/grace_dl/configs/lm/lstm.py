from grace_dl.train import Config, configs
from grace_dl.train.models import lstm

configs.model = Config(lstm, num_classes=configs.dataset.num_classes, width=256, layers=2, dropout=0.1)

configs.train.optimizer.lr = 0.5
configs.train.optimizer.weight_decay = 0.0
