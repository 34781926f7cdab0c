# shellcheck shell=bash
# Sourced by the installers: goes to the repository's root, makes the virtual environment $1 with torch in it,
# and defines `pip` as its own.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"
TORCH="${TORCH:-torch==2.13.0}"
VENV="$1"

# A half-made environment would be taken for a whole one.
[ -e "$VENV" ] || trap '[ $? = 0 ] || rm -rf "$VENV"' EXIT
"$PYTHON" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
# TORCH may hold options too, such as an index.
# shellcheck disable=SC2086
pip install $TORCH
