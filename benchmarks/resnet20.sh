#!/usr/bin/env bash
# ResNet-20 on CIFAR-10 as `configs/cifar/resnet20.py` sets it up, 8 epochs, two workers, one run each of plain averaging, DGC
# (0.1 % after five epochs of warm-up), ACP-SGD and PowerSGD; these two also with the first fifth, 312 steps, uncompressed.
# Resumable: run it again. `channels_last` only makes it quicker here.
set -euo pipefail
cd "$(dirname "$0")/.."
grace=${GRACE:-.venv/bin/grace}
export OMP_NUM_THREADS=1

run() { # name, then config files and settings
  "$grace" train -np 2 --configs configs/cifar/resnet20.py "${@:2}" --configs.train.num_epochs 8 \
    --configs.train.channels_last True --suffix ".$1"
}

run none
run dgc configs/dgc/wm5.py
for method in acpsgd powersgd; do
  run "$method" --configs.train.compression "$method:4"
  run "$method-start" --configs.train.compression "$method:4,start_iter=312"
done
"$grace" bench accuracy --from-runs runs/cifar.resnet20* --out benchmarks/accuracy-resnet20.json
