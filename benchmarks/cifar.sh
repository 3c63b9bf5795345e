#!/usr/bin/env bash
# Accuracy of DGC, ACP-SGD and PowerSGD beside plain averaging: a small convolutional network on all of CIFAR-10, 10 epochs,
# two workers, three seeds. Resumable: run it again. DGC warms up over the first fifth (five stages of 156 steps); ACP-SGD is
# trained three times: from the first step on, and with the first fifth or twentieth uncompressed.
set -euo pipefail
cd "$(dirname "$0")/.."
grace=${GRACE:-.venv/bin/grace}
export OMP_NUM_THREADS=1

run() { # name, then config files and settings
  "$grace" train -np 2 --configs configs/cifar/small.py "${@:2}" --configs.model.width 16 --configs.seed "$seed" --suffix ".$1.s$seed"
}

for seed in 1 2 3; do
  run none
  run dgc configs/dgc/wm5.py --configs.train.compression.warmup_steps 156
  run acpsgd --configs.train.compression acpsgd:4
  run powersgd --configs.train.compression powersgd:4
  run acpsgd-start --configs.train.compression acpsgd:4,start_iter=780
  run acpsgd-start195 --configs.train.compression acpsgd:4,start_iter=195
done
"$grace" bench accuracy --from-runs runs/cifar.small*.s[123] --out benchmarks/accuracy-cifar.json
