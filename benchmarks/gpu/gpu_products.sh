#!/bin/sh
# On a machine with an NVIDIA GPU: builds the kernels of layers alone, checks them, and times products against torch.
# Usage: benchmarks/gpu/gpu_products.sh [FOLDER] [SECONDS OF TIMES; 0: none]
set -u
cd "$(dirname "$0")/../.."
to="${1:-build/gpu-products}"
made="$to/include/headwise/kernels/cuda/device"
mkdir -p "$made"
python3 headwise/kernels/cuda/device/make_wgmma.py "$made/wgmma.inc"
begin=$(date +%s)
cuda=headwise/kernels/cuda
flags="-std=c++20 -O3 --expt-relaxed-constexpr -lineinfo -I. -I$to/include -Xcompiler=-fPIC -Xptxas=-v,--warn-on-spills"
pids=""
for f in "$cuda"/gemm/*.cu "$cuda"/row/*.cu "$cuda/layers.cu" "$cuda/memory.cu" "$cuda/device/stream_state.cu" tests/gpu/layers_*.cu; do
  # shellcheck disable=SC2086
  nvcc $flags -gencode=arch=compute_90a,code=sm_90a -c "$f" -o "$to/$(basename "$f" .cu).o" > "$to/$(basename "$f").log" 2>&1 &
  pids="$pids $!"
done
for f in headwise/kernels/ref/gemm.cc headwise/base/*.cc tests/gpu/layers_shim.cc; do
  g++ -std=c++20 -O2 -fPIC -I. -I/usr/local/cuda/include -c "$f" -o "$to/host_$(basename "$f" .cc).o" > "$to/$(basename "$f").log" 2>&1 &
  pids="$pids $!"
done
for pid in $pids; do wait "$pid"; done
grep -H "error\|C75\|[1-9][0-9]* bytes spill" "$to"/*.log | head -n 40
echo "compiled in $(($(date +%s) - begin)) s"
objects=""
for f in "$cuda"/gemm/*.cu "$cuda"/row/*.cu "$cuda/layers.cu" "$cuda/memory.cu" "$cuda/device/stream_state.cu"; do
  objects="$objects $to/$(basename "$f" .cu).o"
done
# shellcheck disable=SC2086
nvcc -shared -o "$to/libheadwise_layers.so" $objects
nvcc -o "$to/layers_test" "$to"/layers_test.o "$to"/layers_products.o "$to"/layers_rows.o "$to"/layers_texts.o $(find "$to" -name 'host_*.o' ! -name host_layers_shim.o) -ldl -lpthread
g++ -shared -o "$to/libheadwise_shim.so" "$to/host_layers_shim.o" -ldl
"$to/layers_test" "$PWD/$to/libheadwise_layers.so"
echo "tests ended after $(($(date +%s) - begin)) s"
[ "${2:-60}" = 0 ] || python3 benchmarks/gpu/gpu_products.py "$PWD/$to/libheadwise_shim.so" "$PWD/$to/libheadwise_layers.so" "${2:-60}"
echo "ended after $(($(date +%s) - begin)) s"
