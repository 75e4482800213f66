#!/bin/sh
# The main job: a recogniser of financial intents, trained on the built-in corpus, judged, asked. Set-up and build come
# before (make demo). Usage: tools/demo.sh [PROGRAM [FOLDER]]
set -eu
cd "$(dirname "$0")/.."
headwise=${1:-build/release/headwise/cli/headwise}
model=${2:-build/demo/model}
rm -rf "$model" "$model.run"

echo "1. Training on the built-in corpus: 38 financial intents, English and Chinese, one to three of them in a sentence."
echo
"$headwise" train --builtin --out "$model" --epochs 8
echo
echo "2. The test: sentence patterns and connecting words that training never showed; a wrong or missing intent makes a sentence wrong."
echo
"$headwise" eval "$model" --builtin
echo
echo "3. Three sentences, with the words and heads that decided."
echo
"$headwise" predict "$model" --explain "What would it cost me to clear the car loan two years before it ends?" \
  "这份保险我不想买，能不加吗" "Please move my due date to the 20th, and I have lost my debit card"
echo
echo "4. What its heads do, as a page."
echo
page=$(dirname "$model")/report.html
"$headwise" report "$model" --builtin --out "$page"
cat <<END

This corpus is written by a grammar: it shows that training works. Real figures come from public data: docs/intent.md.
Try next:
  $headwise predict $model "your own sentence" --explain
  $headwise train your.tsv --out your_model          text<TAB>intent#another, CSV or JSON lines (docs/corpus.md)
  $headwise train --help                             other heads, sizes, a pretrained encoder
  $headwise serve $model                  answers over HTTP (docs/serve.md)
  make tour                                          the attention below it, and its speed

Open $page in a browser: which heads do what, and why mistakes were made.
END
