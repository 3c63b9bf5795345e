#!/usr/bin/env bash
# The grid: every network with S-SGD, PowerSGD and ACP-SGD, and one table over all at the end. What is measured is kept, and
# the same command goes on where it stopped. Small networks and batches unless you ask for more:
#   bash batch.sh
#   full=1 nworkers=32 bash batch.sh
# dnns, opts: lists by spaces. bs, imgsize: sizes for all; full=1 takes each network's own. All else is as for perf.sh.
set -euo pipefail
cd "$(dirname "$0")"

if [ "${full:-0}" = 0 ]; then
  dnns="${dnns:-resnet18 resnet50 bert-base}"
  export bs="${bs:-4}" rounds="${rounds:-5}"
  case "$dnns" in
    *net*|*vgg*|*inception*|*cnn*) export imgsize="${imgsize:-96}" ;; # networks of text have no use for it
  esac
else
  dnns="${dnns:-resnet18 resnet50 resnet152 vgg16 inception-v4 densenet201 bert-base bert-large}"
fi
read -ra list <<< "$dnns"
dnn=$(IFS=,; echo "${list[*]}") opt="${opts:-ssgd powersgd acpsgd}" out="${out:-runs/bench/batch.json}" \
  exec bash perf.sh "$@"
