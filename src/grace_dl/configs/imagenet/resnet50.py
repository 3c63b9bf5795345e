from grace_dl.train import Config, configs, later
from grace_dl.train.models import resnet50

configs.model = Config(resnet50, num_classes=later(lambda: configs.dataset.num_classes))
