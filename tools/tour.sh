#!/bin/sh
# The tour: attention on a small batch, the plan explained, a speed table. Set-up and build come before (make tour).
set -eu
cd "$(dirname "$0")/.."
PYTHONPATH=build/release/python exec .venv/bin/python examples/tour.py "$@"
