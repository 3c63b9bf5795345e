#!/usr/bin/env bash
# Sets up, then checks style and types and runs every test. Arguments go to pytest: ./test.sh -k topk
set -euo pipefail
cd "$(dirname "$0")"
. scripts/setup.sh
setup
export OMP_NUM_THREADS=1
.venv/bin/ruff check .
.venv/bin/ruff format --check --quiet . || { echo "Not formatted; run: .venv/bin/ruff format ."; exit 1; }
.venv/bin/mypy
exec .venv/bin/python -m pytest "$@"
