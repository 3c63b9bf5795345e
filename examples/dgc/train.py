"""Config-driven training: python train.py --configs configs/cifar/resnet20.py configs/dgc/wm5.py"""

import sys

from grace_dl.train.main import main

if __name__ == "__main__":
    sys.exit(main())
