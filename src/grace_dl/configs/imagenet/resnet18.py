from grace_dl.train import Config, configs, later
from grace_dl.train.models import resnet18

configs.model = Config(resnet18, num_classes=later(lambda: configs.dataset.num_classes))
