#!/usr/bin/env bash
# Local steps beside plain averaging: a character transformer (2.4M parameters) on Shakespeare, four workers, the same number
# of samples for all. Finished runs are skipped and an interrupted one continues: run the same command again.
#
#   bash benchmarks/local.sh              three seeds at a learning rate of 1e-3; writes benchmarks/accuracy-local.json
#   RATES=2e-3 bash benchmarks/local.sh   at another rate; writes runs/local/study-2e-3.json
#   bash benchmarks/local.sh tune         three rates and several outer rates, on a seed that is not in the study
#   bash benchmarks/local.sh smoke        60 steps of each, to see that they run
set -euo pipefail
cd "$(dirname "$0")/.."
grace=${GRACE:-.venv/bin/grace}
mode=${1:-study}
characters=350000 epochs=4 # 4 epochs of 1,230 steps, 164 exchanges
rates=${RATES:-1e-3} outers=6.0
case $mode in
  study) seeds=${SEEDS:-1 2 3} ;;
  tune) seeds=${SEEDS:-11} rates=${RATES:-1e-3 2e-3 4e-3} outers="1.0 4.0 6.0 8.0" ;;
  smoke) seeds=${SEEDS:-11} characters=17200 epochs=1 ;;
  *) echo "unknown mode $mode; use study, tune or smoke" >&2 && exit 2 ;;
esac
export OMP_NUM_THREADS=1

run() { # name, then config files and settings
  local path="runs/local/$mode/$1.s$seed"
  echo "== $path ($(date +%T))"
  "$grace" train -np 4 --devices cpu --configs configs/lm/transformer.py configs/lm/adamw.py "${@:2}" \
    --configs.dataset.length 32 --configs.dataset.most $characters \
    --configs.model.width 256 --configs.model.layers 3 --configs.model.heads 8 \
    --configs.train.batch_size 2 --configs.train.num_epochs $epochs --configs.train.warmup_lr_epochs 0.2 \
    --configs.train.save_every_steps 300 --configs.seed "$seed" --configs.train.save_path "$path"
  runs+=("$path")
}

for rate in $rates; do
  runs=()
  for seed in $seeds; do
    run "ddp-$rate" --configs.train.optimizer.lr "$rate"
    run "diloco-$rate" configs/local/diloco.py --configs.train.optimizer.lr "$rate"
    # So few exchanges of so few elements need a larger outer rate than the published 1: see docs/slow_links.md.
    for outer in $outers; do
      run "sparseloco-$rate-$outer" configs/local/sparseloco.py --configs.train.optimizer.lr "$rate" \
        --configs.train.compression chunktopk:96,beta=0.95 --configs.train.local.outer_lr "$outer"
    done
  done
  out=runs/local/$mode-$rate.json
  if [ "$mode-$rate" = study-1e-3 ]; then out=benchmarks/accuracy-local.json; fi
  "$grace" bench accuracy --from-runs "${runs[@]}" --fresh --out "$out"
done
