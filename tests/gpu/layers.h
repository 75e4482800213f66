// What the tests of the CUDA library's layer kernels share: matrices in both memories, and how far results
// are from double.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "headwise/kernels/cuda/table/layers.h"

namespace headwise::cuda {
inline int failures = 0, checks = 0;
inline std::mt19937 source(7);

inline void check(bool good, const std::string& words) {
  ++checks;
  if (good) return;
  if (++failures <= 40) std::printf("FAILED %s\n", words.c_str());
}
inline void started(const Status& s, const std::string& words) {
  check(s.ok(), words + ": " + (s.ok() ? "" : std::string(s.launch) + ", " + s.words));
}
inline void cuda_ok(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::printf("FAILED cuda: %s\n", cudaGetErrorString(code));
  std::exit(1);
}

/// A matrix in host and device memory, steps as given; what lies between is poisoned.
struct Matrix {
  DType dtype;
  Index rows, columns, row_step, column_step;
  std::vector<std::byte> host;
  std::byte* device = nullptr;

  Matrix(DType t, Index r, Index c, bool turned = false, Index pad = 0, double scale = 1)
      : dtype(t), rows(r), columns(c), row_step(turned ? 1 : c + pad), column_step(turned ? r + pad : 1) {
    const Index count = (turned ? c : r) * ((turned ? r : c) + pad);
    host.assign(static_cast<std::size_t>(max_of(count, 1) * size_of(t)), std::byte{0xff});
    cuda_ok(cudaMalloc(&device, host.size()));
    std::normal_distribution<float> draw;
    if (scale != 0) each([&](Index i, Index j) { put(i, j, scale * static_cast<double>(draw(source))); });
    up();
  }
  ~Matrix() { cudaFree(device); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  template <class F>
  void each(F&& f) const {
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) f(i, j);
  }
  double at(Index i, Index j) const {
    return load_double(host.data(), dtype, i * row_step + j * column_step);
  }
  void put(Index i, Index j, double x) {
    store_double(host.data(), dtype, i * row_step + j * column_step, x);
  }
  void up() { cuda_ok(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice)); }
  void down() {
    cuda_ok(cudaDeviceSynchronize());
    cuda_ok(cudaMemcpy(host.data(), device, host.size(), cudaMemcpyDeviceToHost));
  }
  MatrixView view(void* data) const {
    MatrixView v;
    v.data = data, v.dtype = dtype;
    v.rows = {rows, max_of(rows, 1), row_step, 0}, v.columns = {columns, max_of(columns, 1), column_step, 0};
    return v;
  }
  MatrixView on_host() { return view(host.data()); }
  MatrixView on_device() const { return view(device); }
  Rows as_rows() const { return {device, dtype, row_step}; }
  AnyView row(Index i) {
    AnyView v = AnyView::packed(host.data() + i * row_step * size_of(dtype), dtype, {columns});
    v.step[0] = column_step;
    return v;
  }
};

inline double tolerance(DType t) { return t == DType::bf16 ? 4e-3 : t == DType::f16 ? 6e-4 : 4e-6; }
/// |got - want| / |want| over all elements; NaN fails.
inline void close(const Matrix& got, const std::vector<double>& want, const std::string& words,
                  double most = 0) {
  double off = 0, all = 0;
  got.each([&](Index i, Index j) {
    const double w = want[static_cast<std::size_t>(i * got.columns + j)], d = got.at(i, j) - w;
    off += d * d, all += w * w;
  });
  const double error = std::sqrt(off / std::max(all, 1e-30)),
               allowed = most > 0 ? most : tolerance(got.dtype);
  check(error <= allowed,
        words + ": error " + std::to_string(error) + ", allowed " + std::to_string(allowed));
}
inline std::vector<double> numbers(const Matrix& m) {
  std::vector<double> r;
  m.each([&](Index i, Index j) { r.push_back(m.at(i, j)); });
  return r;
}

void test_products(const LayerTable& table);
void test_product_bits(const LayerTable& table);
void test_norms(const RowTable& rows);
void test_elementwise(const RowTable& rows);
void test_embeddings(const RowTable& rows);
void test_texts(const RowTable& rows);
void test_losses(const RowTable& rows);
void test_optimizers(const RowTable& rows);

}  // namespace headwise::cuda
