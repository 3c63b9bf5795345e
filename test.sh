#!/usr/bin/env bash
# Sets up, then checks style and types and runs every test, at last those with TensorFlow and real Horovod.
# ./test.sh --quick leaves the last ones out. Further arguments go to pytest, for the first part: ./test.sh --quick -k topk
# Test files run side by side, one for each processor; one after another with: ./test.sh --numprocesses 0
set -euo pipefail
cd "$(dirname "$0")"
quick=
if [ "${1:-}" = --quick ]; then
  quick=yes
  shift
fi
. scripts/setup.sh
setup docs,release,lightning,transformers,ray
export OMP_NUM_THREADS=1
.venv/bin/ruff check .
.venv/bin/ruff format --check --quiet . || { echo "Not formatted; run: .venv/bin/ruff format ."; exit 1; }
.venv/bin/mypy
.venv/bin/python -m pytest --numprocesses logical --dist loadfile "$@"
if [ -z "$quick" ]; then
  scripts/test_horovod.sh
fi
