#!/usr/bin/env bash
# Local steps beside plain averaging: a character transformer (2.4M parameters) on Shakespeare, four workers, the same number
# of samples for all. Finished runs are skipped and an interrupted one continues: run the same command again.
#
#   bash benchmarks/local.sh          three seeds, each method at the rate found for it (docs/slow_links.md);
#                                     writes benchmarks/accuracy-local.json after every seed
#   bash benchmarks/local.sh tune     three trials of each method on a seed that is not in the study; writes
#                                     runs/local/tune-60000x16.json
#   bash benchmarks/local.sh smoke    60 steps of each, to see that they run
#
# CHARACTERS=290000 EPOCHS=4 trains on a longer text, read fewer times, and writes runs/local/study-290000x4.json.
set -euo pipefail
cd "$(dirname "$0")/.."
grace=${GRACE:-.venv/bin/grace}
mode=${1:-study}
# 16 epochs of 210 steps, 112 exchanges. Why the text is short: docs/slow_links.md.
characters=${CHARACTERS:-60000} epochs=${EPOCHS:-16}
# A trial is method:learning rate[:outer rate:outer momentum].
trials="ddp:2e-3 diloco:2e-3:0.7:0.9 sparseloco:2e-3:4.0:0.0"
case $mode in
  study) seeds=${SEEDS:-1 2 3} ;;
  tune) seeds=${SEEDS:-11} trials="ddp:1e-3 ddp:2e-3 ddp:4e-3
      diloco:1e-3:0.7:0.9 diloco:2e-3:0.7:0.9 diloco:2e-3:1.0:0.5
      sparseloco:1e-3:6.0:0.0 sparseloco:2e-3:4.0:0.0 sparseloco:4e-3:4.0:0.0" ;;
  smoke) seeds=${SEEDS:-11} characters=17200 epochs=1 ;;
  *) echo "unknown mode $mode; use study, tune or smoke" >&2 && exit 2 ;;
esac
folder=runs/local/$mode-${characters}x$epochs
if [ "$folder" = runs/local/study-60000x16 ]; then out=benchmarks/accuracy-local.json; else out=$folder.json; fi
export OMP_NUM_THREADS=1
runs=()

run() { # folder, method, learning rate, outer rate and momentum
  local path=$1 method=$2 files=(configs/lm/transformer.py configs/lm/adamw.py) settings=()
  if [ "$method" != ddp ]; then
    files+=("configs/local/$method.py")
    settings+=(--configs.train.local.outer_lr "$4" --configs.train.local.outer_momentum "$5")
  fi
  if [ "$method" = sparseloco ]; then settings+=(--configs.train.compression chunktopk:96,beta=0.95); fi
  "$grace" train -np 4 --devices cpu --configs "${files[@]}" "${settings[@]}" \
    --configs.train.optimizer.lr "$3" --configs.train.optimizer.fused True \
    --configs.dataset.length 32 --configs.dataset.most $characters \
    --configs.model.width 256 --configs.model.layers 3 --configs.model.heads 8 \
    --configs.train.batch_size 2 --configs.train.num_epochs $epochs --configs.train.warmup_lr_epochs 0 \
    --configs.train.save_every_steps 500 --configs.train.keep 2 --configs.train.tensorboard False \
    --configs.train.log_every 50 --configs.seed "$seed" --configs.train.save_path "$path"
}

for seed in $seeds; do
  for trial in $trials; do
    path=$folder/${trial//:/-}.s$seed
    runs+=("$path")
    if [ -e "$path/done" ]; then continue; fi
    echo "== $path ($(date +%T))"
    IFS=: read -r method rate outer momentum <<<"$trial"
    run "$path" "$method" "$rate" "$outer" "$momentum"
    touch "$path/done"
    rm -r "$path/checkpoints" # 100 MB for each worker
  done
  "$grace" bench accuracy --from-runs "${runs[@]}" --fresh --out "$out"
done
