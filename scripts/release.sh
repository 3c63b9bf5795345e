#!/usr/bin/env bash
# Builds what a release uploads into dist/: the sdist, and a wheel built from it. On Linux the wheel gets the manylinux tag
# that the compiler of this machine allows; .github/workflows/release.yml builds wheels for older systems and for every
# supported Python. Nothing is uploaded or tagged. --draft skips the checks that only a release has to pass.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup docs,release
version=$(.venv/bin/python scripts/changelog.py check)
if [ "${1:-}" != --draft ]; then
  [ -z "$(git status --porcelain)" ] || { echo "release.sh: there are uncommitted changes; commit them, or use --draft" >&2; exit 2; }
  .venv/bin/python scripts/changelog.py notes "$version" > /dev/null
fi
rm -rf dist
export PIP_CONSTRAINT=$PWD/constraints.txt
.venv/bin/python -m build --sdist --outdir dist .
.venv/bin/python -m pip wheel --no-deps --wheel-dir dist/built "dist/grace_dl-$version.tar.gz"
if [ "$(uname)" = Linux ]; then
  PATH=$PWD/.venv/bin:$PATH .venv/bin/auditwheel repair --wheel-dir dist dist/built/*.whl
else
  mv dist/built/*.whl dist
fi
rm -r dist/built
ls dist
