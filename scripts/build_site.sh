#!/usr/bin/env bash
# Builds the documentation site; warnings are errors. Argument: the folder, build/site by default.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup docs
exec .venv/bin/python -m scripts.site "$@"
