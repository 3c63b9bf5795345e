#!/usr/bin/env bash
# Sets up, then trains a network plain and compressed, on loopback and on slower links. Options: ./demo.sh --help
set -euo pipefail
cd "$(dirname "$0")"
. scripts/setup.sh
setup
exec .venv/bin/grace demo "$@"
