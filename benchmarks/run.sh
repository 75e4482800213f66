#!/bin/sh
# Builds the Python module, then measures; JSON and Markdown go to benchmarks/results/. Arguments go to attention_bench.py.
set -eu
cd "$(dirname "$0")/.."
tools/build.sh headwise_python
PYTHONPATH=build/release/python exec .venv/bin/python benchmarks/attention_bench.py "$@"
