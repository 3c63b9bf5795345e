#!/usr/bin/env bash
# Benchmark grid: every network with S-SGD, PowerSGD and ACP-SGD, and one table at the end. Results are saved as they are
# measured; run the same command again to resume. Networks and batches are small by default:
#   bash batch.sh
#   full=1 nworkers=32 bash batch.sh
# dnns, opts: lists separated by spaces. bs, imgsize: sizes for all networks; full=1 uses each network's own. For all else see perf.sh.
set -euo pipefail
cd "$(dirname "$0")"

if [ "${full:-0}" = 0 ]; then
  dnns="${dnns:-resnet18 resnet50 bert-base}"
  export bs="${bs:-4}" rounds="${rounds:-5}"
  case "$dnns" in
    *net*|*vgg*|*inception*|*cnn*) export imgsize="${imgsize:-96}" ;; # text models take no image size
  esac
else
  dnns="${dnns:-resnet18 resnet50 resnet152 vgg16 inception-v4 densenet201 bert-base bert-large}"
fi
read -ra list <<< "$dnns"
dnn=$(IFS=,; echo "${list[*]}") opt="${opts:-ssgd powersgd acpsgd}" out="${out:-runs/bench/batch.json}" \
  exec bash perf.sh "$@"
