// Row operations on a CUDA device against `ref` in double.
#include <cstring>

#include "headwise/base/random.h"
#include "headwise/kernels/ref/activation.h"
#include "headwise/kernels/ref/cross_entropy.h"
#include "headwise/kernels/ref/layer_norm.h"
#include "headwise/kernels/ref/norm.h"
#include "headwise/kernels/ref/rope.h"
#include "tests/gpu/layers.h"

namespace headwise::cuda {

void test_norms(const RowTable& rows) {
  for (const DType t : {DType::bf16, DType::f16, DType::f32})
    for (const Index width : {Index{1}, Index{63}, Index{129}, Index{768}, Index{1600}})
      for (const bool layer : {true, false}) {
        const std::string words = std::string(layer ? "layer norm " : "rms norm ") + std::string(name_of(t)) +
                                  " " + std::to_string(width);
        const Index count = 300;
        Matrix x(t, count, width), dout(t, count, width), weight(t, 1, width), bias(t, 1, width),
            out(t, count, width, false, 0, 0), dx(t, count, width, false, 0, 0), mean(DType::f32, 1, count),
            inverse(DType::f32, 1, count), dweight(DType::f32, 1, width), dbias(DType::f32, 1, width);
        std::vector<double> want(static_cast<std::size_t>(count * width)),
            slopes = want, w = numbers(dweight), b = numbers(dbias);
        const double eps = 1e-5;
        for (Index i = 0; i < count; ++i) {
          const AnyView to = AnyView::packed(want.data() + i * width, DType::f64, {width}),
                        dto = AnyView::packed(slopes.data() + i * width, DType::f64, {width});
          if (layer) {
            ref::layer_norm(x.row(i), weight.row(0), bias.row(0), eps, to);
            ref::layer_norm_backward(x.row(i), weight.row(0), eps, dout.row(i), dto, w.data(), b.data());
          } else {
            ref::rms_norm(x.row(i), weight.row(0), 0, eps, to);
            ref::rms_norm_backward(x.row(i), weight.row(0), 0, eps, dout.row(i), dto,
                                   AnyView::packed(w.data(), DType::f64, {width}));
          }
        }
        NormTask f{.x = x.as_rows(),
                   .out = out.as_rows(),
                   .weight = {weight.device, t},
                   .mean = reinterpret_cast<float*>(mean.device),
                   .inverse = reinterpret_cast<float*>(inverse.device),
                   .rows = count,
                   .columns = width,
                   .layer = layer};
        if (layer) f.bias = {bias.device, t};
        started(rows.norm(f, 0, nullptr), words);
        out.down();
        if (width > 1) close(out, want, words);
        NormGradTask g{.x = x.as_rows(),
                       .dout = dout.as_rows(),
                       .dx = dx.as_rows(),
                       .weight = {weight.device, t},
                       .mean = f.mean,
                       .inverse = f.inverse,
                       .dweight = reinterpret_cast<float*>(dweight.device),
                       .dbias = layer ? reinterpret_cast<float*>(dbias.device) : nullptr,
                       .rows = count,
                       .columns = width,
                       .layer = layer};
        started(rows.norm_backward(g, 0, nullptr), words);
        dx.down(), dweight.down(), dbias.down();
        if (width > 1) close(dx, slopes, words + " dx"), close(dweight, w, words + " dweight", 1e-5);
        if (layer) close(dbias, b, words + " dbias", 1e-5);
      }
}
namespace {

void activations(const RowTable& rows) {
  for (const DType t : {DType::bf16, DType::f16, DType::f32})
    for (int kind = 0; kind < 6; ++kind)
      for (const bool gated : {false, true}) {
        const auto act = static_cast<Activation>(kind);
        const std::string words = std::string(gated ? "gated " : "activation ") + std::string(name_of(t)) +
                                  " " + std::string(name_of(act));
        Matrix x(t, 33, 77, false, 3, 2), gate(t, 33, 77, false, 3, 2), dout(t, 33, 77, false, 3),
            out(t, 33, 77, false, 3, 0), dgate(t, 33, 77, false, 3, 0);
        ActivationTask task{.x = x.as_rows(), .out = out.as_rows(), .rows = 33, .columns = 77, .kind = act};
        if (gated) task.gate = gate.as_rows();
        std::vector<double> value, slope, other;
        x.each([&](Index i, Index j) {
          const double u = x.at(i, j), g = gate.at(i, j), d = dout.at(i, j);
          value.push_back(gated ? u * ref::activate(act, g) : ref::activate(act, u));
          slope.push_back(gated ? d * ref::activate(act, g) : d * ref::slope_of(act, u));
          other.push_back(d * u * ref::slope_of(act, g));
        });
        started(rows.activation(task, 0, nullptr), words);
        out.down(), close(out, value, words);
        task.backward = true, task.dout = dout.as_rows();
        if (gated) task.dgate = dgate.as_rows();
        started(rows.activation(task, 0, nullptr), words);
        out.down(), close(out, slope, words + " gradient");
        if (gated) dgate.down(), close(dgate, other, words + " gate's gradient");
      }
}
void dropouts(const RowTable& rows) {
  for (const DType t : {DType::bf16, DType::f16, DType::f32}) {
    Matrix x(t, 50, 133), residual(t, 50, 133), out(t, 50, 133, false, 0, 0);
    const DropoutRule rule = DropoutRule::of(0.3, 99);
    started(rows.dropout({.x = x.as_rows(),
                          .residual = residual.as_rows(),
                          .out = out.as_rows(),
                          .rows = 50,
                          .columns = 133,
                          .first_row = 12,
                          .scale = 1 / 0.7,
                          .seed = 99,
                          .threshold = rule.threshold,
                          .site = 5},
                         0, nullptr),
            "dropout");
    out.down();
    Index off = 0;
    x.each([&](Index i, Index j) {
      const bool keep =
          Philox::block(99, {static_cast<std::uint32_t>(j / 4), static_cast<std::uint32_t>(i + 12), 0,
                             5})[static_cast<std::size_t>(j % 4)] >= rule.threshold;
      double want[1];
      store_double(want, t, 0, (keep ? x.at(i, j) * (1 / 0.7) : 0.0) + residual.at(i, j));
      off += load_double(want, t, 0) != out.at(i, j);
    });
    check(off == 0,
          "dropout " + std::string(name_of(t)) + ": " + std::to_string(off) + " numbers are not the CPU's");
  }
}
void ropes(const RowTable& rows) {
  for (const DType t : {DType::bf16, DType::f16, DType::f32})
    for (const RopeKind kind : {RopeKind::half, RopeKind::interleaved}) {
      const Index heads = 3, dim = 40, pairs = 16, tokens = 21;
      Matrix x(t, tokens * heads, dim), out(t, tokens * heads, dim, false, 0, 0);
      RopeOptions options{.kind = kind, .rotary_dim = 2 * pairs};
      const RopeRule rule(options, 2 * pairs);
      RopeTask task{.x = x.device,
                    .out = out.device,
                    .dtype = t,
                    .tokens = tokens,
                    .heads = heads,
                    .dim = dim,
                    .x_step = {heads * dim, dim},
                    .out_step = {heads * dim, dim},
                    .start = 100000,
                    .kind = kind,
                    .pairs = static_cast<int>(pairs)};
      for (int i = 0; i < pairs; ++i) task.frequency[i] = rule.frequency(i);
      std::vector<double> want(static_cast<std::size_t>(tokens * heads * dim));
      for (Index i = 0; i < tokens * heads; ++i)
        ref::rope(x.row(i), 100000 + i / heads, AnyView::packed(want.data() + i * dim, DType::f64, {dim}),
                  options, 2 * pairs);
      started(rows.rope(task, 0, nullptr), "rope");
      out.down(), close(out, want, "rope " + std::string(name_of(t)), t == DType::f32 ? 1e-7 : 0);
    }
}

}  // namespace

void test_elementwise(const RowTable& rows) {
  activations(rows);
  dropouts(rows);
  ropes(rows);
}
void test_embeddings(const RowTable& rows) {
  for (const DType t : {DType::bf16, DType::f32}) {
    const Index tokens = 1500, words = 97, dim = 264;
    Matrix table(t, words, dim), out(t, tokens, dim, false, 0, 0), grads(DType::f32, words, dim);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    for (auto& id : ids) id = static_cast<std::int32_t>(source() % 97 * (source() % 97) / 97);
    std::int32_t* there = nullptr;
    cuda_ok(cudaMalloc(&there, ids.size() * 4));
    cuda_ok(cudaMemcpy(there, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice));
    EmbeddingTask task{.table = table.as_rows(),
                       .out = out.as_rows(),
                       .ids = there,
                       .tokens = tokens,
                       .table_rows = words,
                       .columns = dim,
                       .scale = 2};
    started(rows.embedding(task, 0, nullptr), "embedding");
    out.down();
    std::vector<double> want, sums = numbers(grads);
    out.each([&](Index i, Index j) { want.push_back(2 * table.at(ids[static_cast<std::size_t>(i)], j)); });
    close(out, want, "embedding");
    std::vector<float> exact;
    grads.each([&](Index i, Index j) { exact.push_back(static_cast<float>(grads.at(i, j))); });
    out.each([&](Index i, Index j) {
      float& sum = exact[static_cast<std::size_t>(ids[static_cast<std::size_t>(i)] * dim + j)];
      sum = std::fma(static_cast<float>(out.at(i, j)), 2.0f, sum);
    });
    task.backward = true, task.table = grads.as_rows();
    started(rows.embedding(task, 0, nullptr), "embedding backward");
    grads.down();
    check(std::memcmp(exact.data(), grads.host.data(), exact.size() * 4) == 0,
          "embedding backward: not the sums of ascending tokens");
    cudaFree(there);
  }
}
void test_losses(const RowTable& rows) {
  for (const DType t : {DType::bf16, DType::f16, DType::f32})
    for (const float smoothing : {0.0f, 0.1f}) {
      const Index count = 1100, classes = 531;
      Matrix x(t, count, classes, false, 5, 3), dx(t, count, classes, false, 5, 0),
          loss(DType::f64, 1, count), total(DType::f64, 1, 1);
      std::vector<std::int64_t> labels;
      for (Index i = 0; i < count; ++i)
        labels.push_back(i % 7 == 3 ? -100 : static_cast<Index>(source() % 531));
      std::int64_t* there = nullptr;
      cuda_ok(cudaMalloc(&there, labels.size() * 8));
      cuda_ok(cudaMemcpy(there, labels.data(), labels.size() * 8, cudaMemcpyHostToDevice));
      total.put(0, 0, 1), total.up();
      std::vector<double> want, slopes;
      double sum = 1;
      for (Index i = 0; i < count; ++i) {
        const Index label = labels[static_cast<std::size_t>(i)];
        want.push_back(label < 0 ? 0 : ref::cross_entropy(x.row(i), label, static_cast<double>(smoothing)));
        sum += want.back();
        const double lse = ref::log_sum_exp(x.row(i));
        for (Index c = 0; c < classes; ++c)
          slopes.push_back(label < 0 ? 0
                                     : 0.25 * (std::exp(x.at(i, c) - lse) -
                                               (c == label ? 1 - static_cast<double>(smoothing) : 0.0) -
                                               static_cast<double>(smoothing) / 531));
      }
      started(rows.cross_entropy({.logits = x.as_rows(),
                                  .dlogits = dx.as_rows(),
                                  .labels = there,
                                  .wide_labels = true,
                                  .rows = count,
                                  .classes = classes,
                                  .smoothing = smoothing,
                                  .weight = 0.25f,
                                  .loss = reinterpret_cast<double*>(loss.device),
                                  .total = reinterpret_cast<double*>(total.device)},
                                 0, nullptr),
              "cross entropy");
      dx.down(), loss.down(), total.down();
      const std::string words = "cross entropy " + std::string(name_of(t));
      close(loss, want, words, 1e-6), close(dx, slopes, words + " gradient"),
          close(total, {sum}, words + " total", 1e-6);
      cudaFree(there);
    }
}
namespace {

void binary_losses(const RowTable& rows) {
  for (const DType t : {DType::bf16, DType::f16, DType::f32}) {
    const Index count = 70, classes = 531;
    Matrix x(t, count, classes, false, 0, 3), y(DType::u8, count, classes, false, 0, 0),
        dx(t, count, classes, false, 0, 0), loss(DType::f64, 1, count), total(DType::f64, 1, 1, false, 0, 0);
    for (auto& label : y.host) label = static_cast<std::byte>(source() % 2);
    y.up(), total.put(0, 0, 2), total.up();
    std::vector<double> want(static_cast<std::size_t>(count)), slopes;
    double sum = 2;
    x.each([&](Index i, Index j) {
      want[static_cast<std::size_t>(i)] += ref::binary_cross_entropy(x.at(i, j), y.at(i, j));
      sum += ref::binary_cross_entropy(x.at(i, j), y.at(i, j));
      slopes.push_back(0.5 * ref::binary_cross_entropy_slope(x.at(i, j), y.at(i, j)));
    });
    started(rows.binary_cross_entropy({.logits = x.as_rows(),
                                       .labels = y.as_rows(),
                                       .dlogits = dx.as_rows(),
                                       .rows = count,
                                       .classes = classes,
                                       .weight = 0.5f,
                                       .loss = reinterpret_cast<double*>(loss.device),
                                       .total = reinterpret_cast<double*>(total.device)},
                                      0, nullptr),
            "binary cross entropy");
    dx.down(), loss.down(), total.down();
    const std::string words = "binary cross entropy " + std::string(name_of(t));
    close(loss, want, words, 1e-12), close(dx, slopes, words + " gradient"),
        close(total, {sum}, words + " total", 1e-12);
  }
}

void sgd_steps(const RowTable& rows) {
  for (const bool ahead : {false, true}) {
    Matrix x(DType::f32, 1, 5000), g(DType::f32, 1, 5000), b(DType::f32, 1, 5000);
    const AdamWParameter parameter{.master = reinterpret_cast<float*>(x.device),
                                   .gradient = reinterpret_cast<float*>(g.device),
                                   .m = reinterpret_cast<float*>(b.device),
                                   .count = 5000};
    const SgdWords words{.rate = 0.1f,
                         .momentum = 0.9f,
                         .gain = 1,
                         .decay = 0.01f,
                         .factor = 0.5f,
                         .first = 0,
                         .ahead = ahead,
                         .skip = 0};
    std::vector<double> wx, wb;
    x.each([&](Index, Index j) {
      const double d = 0.5 * g.at(0, j) + 0.01 * x.at(0, j), bj = 0.9 * b.at(0, j) + d;
      wb.push_back(bj), wx.push_back(x.at(0, j) - 0.1 * (ahead ? d + 0.9 * bj : bj));
    });
    AdamWParameter* there = nullptr;
    SgdWords* words_there = nullptr;
    cuda_ok(cudaMalloc(&there, sizeof parameter)), cuda_ok(cudaMalloc(&words_there, sizeof words));
    cuda_ok(cudaMemcpy(there, &parameter, sizeof parameter, cudaMemcpyHostToDevice));
    cuda_ok(cudaMemcpy(words_there, &words, sizeof words, cudaMemcpyHostToDevice));
    started(rows.sgd({.parameters = there, .words = words_there, .count = 1, .blocks = 2}, 0, nullptr),
            "sgd");
    x.down(), b.down();
    close(x, wx, "sgd"), close(b, wb, "sgd momentum");
    cudaFree(there), cudaFree(words_there);
  }
}

}  // namespace

void test_optimizers(const RowTable& rows) {
  const Index sizes[] = {5000, 3, 4096, 12289};
  std::vector<AdamWParameter> parameters;
  std::vector<Matrix*> all;
  Index blocks = 0;
  double squares = 0;
  for (const Index n : sizes) {
    for (int i = 0; i < 4; ++i) all.push_back(new Matrix(DType::f32, 1, n));
    Matrix* const* at = &all[all.size() - 4];
    at[3]->each([&](Index, Index j) { at[3]->put(0, j, std::abs(at[3]->at(0, j))); }), at[3]->up();
    at[1]->each([&](Index, Index j) { squares += at[1]->at(0, j) * at[1]->at(0, j); });
    parameters.push_back({.master = reinterpret_cast<float*>(at[0]->device),
                          .gradient = reinterpret_cast<float*>(at[1]->device),
                          .m = reinterpret_cast<float*>(at[2]->device),
                          .v = reinterpret_cast<float*>(at[3]->device),
                          .decays = n > 3,
                          .count = n,
                          .first_block = blocks});
    blocks += ceil_div(n, kAdamWBlock);
  }
  AdamWParameter* there = nullptr;
  AdamWWords words{.rate = 0.01f,
                   .beta1 = 0.9f,
                   .beta2 = 0.99f,
                   .eps = 1e-8f,
                   .decay = 0.1f,
                   .size = 0.05f,
                   .root = 0.3f,
                   .gain = 0,
                   .factor = 1,
                   .skip = 0},
      *words_there = nullptr;
  double* sums = nullptr;
  double* norm_there = nullptr;
  cuda_ok(cudaMalloc(&there, sizeof(AdamWParameter) * 4)), cuda_ok(cudaMalloc(&words_there, sizeof words)),
      cuda_ok(cudaMalloc(&sums, 8 * static_cast<std::size_t>(blocks))), cuda_ok(cudaMalloc(&norm_there, 8));
  cuda_ok(cudaMemcpy(there, parameters.data(), sizeof(AdamWParameter) * 4, cudaMemcpyHostToDevice)),
      cuda_ok(cudaMemcpy(words_there, &words, sizeof words, cudaMemcpyHostToDevice));
  AdamWTask task{.parameters = there, .words = words_there, .count = 4, .blocks = blocks, .squares = sums};
  started(rows.adamw(task, 0, nullptr), "squares");
  started(
      rows.norm_of({.squares = sums, .blocks = blocks, .limit = 10, .norm = norm_there, .words = words_there},
                   0, nullptr),
      "norm");
  cuda_ok(cudaMemcpy(&words, words_there, sizeof words, cudaMemcpyDeviceToHost));
  check(std::abs(static_cast<double>(words.factor) - 10 / (std::sqrt(squares) + 1e-6)) < 1e-6 && words.skip == 0,
        "clip factor " + std::to_string(words.factor));
  task.squares = nullptr;
  started(rows.adamw(task, 0, nullptr), "adamw");
  for (std::size_t n = 0; n < 4; ++n) {
    Matrix &x = *all[4 * n], &g = *all[4 * n + 1], &m = *all[4 * n + 2], &v = *all[4 * n + 3];
    std::vector<double> wx, wm, wv;
    x.each([&](Index, Index j) {
      const double gj = g.at(0, j) * static_cast<double>(words.factor),
                   mj = m.at(0, j) + 0.1 * (gj - m.at(0, j)), vj = 0.99 * v.at(0, j) + 0.01 * gj * gj;
      wm.push_back(mj), wv.push_back(vj),
          wx.push_back(x.at(0, j) * (sizes[n] > 3 ? 1 - 0.001 : 1) -
                       0.05 * mj / (std::sqrt(vj) / 0.3 + 1e-8));
    });
    x.down(), g.down(), m.down(), v.down();
    close(x, wx, "adamw"), close(m, wm, "adamw m"), close(v, wv, "adamw v");
    bool clear = true;
    g.each([&](Index, Index j) { clear = clear && g.at(0, j) == 0; });
    check(clear, "adamw: gradients are not cleared");
  }
  sgd_steps(rows);
  binary_losses(rows);
  for (Matrix* m : all) delete m;
  cudaFree(there), cudaFree(words_there), cudaFree(sums), cudaFree(norm_there);
}

}  // namespace headwise::cuda
