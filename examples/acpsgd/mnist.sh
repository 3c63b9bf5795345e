#!/usr/bin/env bash
# Train on MNIST with several workers on this machine: `bash mnist.sh`. Settings are environment variables, as in
#   opt=powersgd rank=2 nworkers=4 bash mnist.sh
set -euo pipefail
cd "$(dirname "$0")"

nworkers="${nworkers:-2}"
PY="${PY:-$([ -x ../../.venv/bin/python ] && echo ../../.venv/bin/python || echo python3)}"
# One thread per worker on a shared machine; gradients of small layers do not benefit from more.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

exec "$PY" -m torch.distributed.run --standalone --nproc-per-node "$nworkers" mnist.py \
    --opt "${opt:-acpsgd}" --rank "${rank:-4}" --threshold "${threshold:-25}" \
    --epochs "${epochs:-2}" --batch-size "${bs:-64}" "$@"
