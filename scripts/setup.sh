# Sourced by demo.sh and test.sh: makes .venv hold this project, built, with the pinned versions.
# Nothing is done when .venv was made from the very same files. PYTHON names another interpreter.
# Arguments: further extras, separated by commas, such as those of the frameworks that tests need.

setup() {
  local stamp wanted extras=demo,dev,types${1:+,$1}
  wanted=$(cat constraints.txt pyproject.toml CMakeLists.txt scripts/setup.sh $(find native -type f | LC_ALL=C sort) | cksum)" $extras"
  stamp=.venv/.grace-setup
  if [ -x .venv/bin/python ] && [ -f "$stamp" ]; then
    case "$(cat "$stamp")," in "$wanted",*) return ;; esac
  fi
  if [ ! -x .venv/bin/python ]; then
    echo "Creating .venv"
    "${PYTHON:-python3}" -m venv .venv
  fi
  echo "Installing into .venv (a few minutes the first time)"
  # The constraint is given by environment so that it holds inside the isolated build as well.
  PIP_CONSTRAINT=$PWD/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
    .venv/bin/python -m pip install --quiet --editable ".[$extras]"
  echo "$wanted" > "$stamp"
}
