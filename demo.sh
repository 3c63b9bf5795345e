#!/usr/bin/env bash
# Sets up, then trains a small network on two local workers, plain and compressed. Options: ./demo.sh --help
set -euo pipefail
cd "$(dirname "$0")"
. scripts/setup.sh
setup
exec .venv/bin/grace demo "$@"
