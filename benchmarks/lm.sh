#!/usr/bin/env bash
# Loss against time and bytes where the network matters: a character transformer (5.4M parameters) on Shakespeare, one small batch
# per worker and step. Every method trains in full once per seed over a link without a limit; over slower links a part of an epoch is
# timed, because the link changes only the time of a step. `auto` decides by measured times, so it trains in full at every rate.
# Finished runs are skipped: run the same command again. Needs a quiet machine and the right to make network namespaces.
#
#   bash benchmarks/lm.sh               two hosts, three seeds; writes benchmarks/accuracy-lm.json
#   WORKERS=4 SEEDS=1 bash benchmarks/lm.sh
#   SEEDS=2,3 METHODS="ddp topk:0.01" bash benchmarks/lm.sh
set -euo pipefail
cd "$(dirname "$0")/.."
grace=${GRACE:-.venv/bin/grace}
seeds=${SEEDS:-1,2,3} workers=${WORKERS:-2}
methods=${METHODS:-ddp bf16 int8 int4 topk:0.01 powersgd:4 acpsgd:4 efsignsgd diloco sparseloco}
if [ "$workers" = 2 ]; then out=benchmarks/accuracy-lm.json; else out=benchmarks/accuracy-lm-$workers.json; fi

study() { # methods and options
  "$grace" bench accuracy --task lm --workers "$workers" --out "$out" --methods "$@" \
    --configs.model.width 384 --configs.model.layers 3 --configs.model.heads 6 \
    --configs.dataset.length 32 --configs.dataset.most 64000 --configs.train.batch_size 1 \
    --configs.train.num_epochs 3 --configs.train.optimizer.lr "${RATE:-5e-4}" --configs.train.optimizer.fused True
}

for seed in ${seeds//,/ }; do
  # shellcheck disable=SC2086 # a list
  study $methods --seeds "$seed" --rate unlimited,1gbit,100mbit --timed-epochs 0.05
done
[ -z "${METHODS:-}" ] || exit 0
for seed in ${seeds//,/ }; do
  study ddp auto --seeds "$seed" --rate unlimited,1gbit,100mbit
done
