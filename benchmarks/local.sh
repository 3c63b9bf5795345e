#!/usr/bin/env bash
# Local steps beside plain averaging: a small character transformer (0.44M parameters) on the first million characters of
# Shakespeare, four workers, the same number of samples for all. Resumable: run it again. SEEDS="1 2 3" trains three seeds.
set -euo pipefail
cd "$(dirname "$0")/.."
grace=${GRACE:-.venv/bin/grace}
seeds=${SEEDS:-1}
export OMP_NUM_THREADS=1

run() { # name, then config files and settings
  "$grace" train -np 4 --devices cpu --configs configs/lm/transformer.py configs/lm/adamw.py "${@:2}" \
    --configs.dataset.length 64 --configs.dataset.most 1000000 \
    --configs.model.width 128 --configs.model.layers 2 --configs.model.heads 4 \
    --configs.train.batch_size 16 --configs.train.num_epochs 4 --configs.train.save_every_steps 50 \
    --configs.seed "$seed" --configs.train.save_path "runs/local/$1.s$seed"
}

for seed in $seeds; do
  run ddp
  run diloco configs/local/diloco.py
  run sparseloco configs/local/sparseloco.py
done
"$grace" bench accuracy --from-runs runs/local/*.s[0-9] --fresh --out benchmarks/accuracy-local.json
