#!/usr/bin/env bash
# Makes .venv-hvd with TensorFlow and Horovod (built once, then taken from the cache) and runs the tests that need them.
# Test files run side by side, one for each processor. Arguments go to pytest: scripts/test_horovod.sh -k fit
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=$(cat scripts/horovod-constraints.txt scripts/test_horovod.sh pyproject.toml CMakeLists.txt $(find native -type f | LC_ALL=C sort) | cksum)
stamp=.venv-hvd/.grace-setup
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
  echo "Installing into .venv-hvd (torch, TensorFlow; Horovod is compiled the first time: 6 to 20 minutes)"
  [ -x .venv-hvd/bin/python ] || "${PYTHON:-python3}" -m venv .venv-hvd
  export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=$PWD/scripts/horovod-constraints.txt
  pip() { .venv-hvd/bin/python -m pip install --quiet "$@"; }
  pip torch tensorflow-cpu setuptools wheel packaging cffi pyyaml cloudpickle psutil cmake
  pip --no-deps tf_keras
  # Its own build folder: .venv builds the same extension at the same time.
  pip --editable '.[demo,dev]' --config-settings=build-dir=build/hvd-{wheel_tag}
  PIP_CONSTRAINT='' .venv-hvd/bin/grace horovod install
  echo "$wanted" > "$stamp"
fi

export OMP_NUM_THREADS=1 GRACE_TEST_HOROVOD=1
exec .venv-hvd/bin/python -m pytest --numprocesses logical --dist loadfile tests/hvd "$@"
