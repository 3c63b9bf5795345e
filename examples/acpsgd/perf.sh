#!/usr/bin/env bash
# Benchmark of a training step, compared with plain S-SGD and with a step without communication:
#   opt=acpsgd rank=4 dnn=resnet50 bs=64 nworkers=2 bash perf.sh
# opt: ssgd, powersgd, acpsgd or any method in its text form (topk:0.01); separate several by spaces. rank: of powersgd and acpsgd.
# dnn: a name of `grace bench step --help`; separate several by commas. bs, imgsize, senlen: sizes (default: the network's).
# nthreads, rounds: threads per worker, measured steps.
# through: ddp (default), optimizer or both, separated by a comma: what methods are attached to. rdma: which interface of envs.conf.
# out: the result file. Arguments are passed to `grace bench step`.
set -euo pipefail
cd "$(dirname "$0")"
. ./envs.conf

default_python=python3
[ -x ../../.venv/bin/python ] && default_python=$(cd ../.. && pwd)/.venv/bin/python
interface="${ETH_INTERFACE:-}"
[ "${rdma:-0}" = 0 ] || interface="${IB_INTERFACE:-}"
if [ -n "$interface" ]; then
  export GLOO_SOCKET_IFNAME="$interface"
fi
if [ -n "${GRACE_PORT:-}" ]; then
  export GRACE_PORT
fi

options=()
option() { # option NAME VALUE: pass only what is set, so that defaults live in one place
  [ -z "$2" ] || options+=("$1" "$2")
}
option --batch-size "${bs:-}"
option --image-size "${imgsize:-}"
option --length "${senlen:-}"
option --threads "${nthreads:-}"
option --rounds "${rounds:-}"
option --through "${through:-}"
# A bash array is fine too: hosts=(node1 node2).
option --hosts "${hosts[*]:-}"

read -ra opts <<< "${opt:-acpsgd}"
for i in "${!opts[@]}"; do
  case "${opts[i]}" in
    powersgd|acpsgd) opts[i]+=":${rank:-4}" ;;
  esac
done
# shellcheck disable=SC2086  # PY may hold options, as in PY="python -W ignore"
exec ${PY:-$default_python} -m grace_dl.cli bench step --model "${dnn:-resnet50}" --methods ssgd "${opts[@]}" \
  --workers "${nworkers:-2}" --out "${out:-runs/bench/perf.json}" "${options[@]}" "$@"
