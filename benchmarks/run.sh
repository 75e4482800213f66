#!/bin/sh
# Measures; JSON and Markdown go to benchmarks/results/. Without arguments attention, then the service; `serve ...` the service
# alone, with arguments for serve_bench.py; any others are for attention_bench.py.
set -eu
cd "$(dirname "$0")/.."
if [ "${1:-}" != serve ]; then
  tools/build.sh headwise_python
  PYTHONPATH=build/release/python .venv/bin/python benchmarks/attention_bench.py "$@"
  [ $# -eq 0 ] || exit 0
else
  shift
fi
tools/build.sh headwise_cli headwise_serve_load
exec .venv/bin/python benchmarks/serve/serve_bench.py "$@"
