// Kernels over lists of rows against double: bags of n-grams, and rows of texts pooled by learned queries.
#include "tests/gpu/layers.h"

namespace headwise::cuda {
namespace {

/// Numbers of rows in device memory.
class List {
 public:
  explicit List(const std::vector<std::int32_t>& from) {
    cuda_ok(cudaMalloc(&data_, sizeof(std::int32_t) * (from.size() + 1)));
    cuda_ok(cudaMemcpy(data_, from.data(), sizeof(std::int32_t) * from.size(), cudaMemcpyHostToDevice));
  }
  ~List() { cudaFree(data_); }
  List(const List&) = delete;
  List& operator=(const List&) = delete;
  operator const std::int32_t*() const { return data_; }

 private:
  std::int32_t* data_ = nullptr;
};

void bags(const RowTable& rows, DType type, Index columns) {
  const std::string words = "bags " + std::string(name_of(type)) + " " + std::to_string(columns);
  const std::vector<std::int32_t> offsets = {0, 3, 3, 4, 40}, counts = {0, 0, 0, 0};
  std::vector<std::int32_t> entries, tokens, starts = {0}, runs;
  for (std::int32_t i = 0; i < 40; ++i) entries.push_back(i * 7 % 11);
  std::vector<double> root;
  for (std::size_t b = 0; b < counts.size(); ++b)
    root.push_back(1 / std::sqrt(std::max(1.0, static_cast<double>(offsets[b + 1] - offsets[b]))));
  for (std::int32_t row = 0; row < 13; ++row) {
    for (std::int32_t b = 0; b < 4; ++b)
      for (std::int32_t i = offsets[static_cast<std::size_t>(b)];
           i < offsets[static_cast<std::size_t>(b) + 1]; ++i)
        if (entries[static_cast<std::size_t>(i)] == row) tokens.push_back(b);
    if (static_cast<std::int32_t>(tokens.size()) > starts.back())
      runs.push_back(row), starts.push_back(static_cast<std::int32_t>(tokens.size()));
  }
  Matrix table(type, 13, columns, false, 8), out(type, 4, columns, false, 0, 0),
      grad(DType::f32, 13, columns), dout(type, 4, columns);
  std::vector<double> want, slopes = numbers(grad);
  out.each([&](Index b, Index c) {
    double sum = 0;
    for (std::int32_t i = offsets[static_cast<std::size_t>(b)]; i < offsets[static_cast<std::size_t>(b) + 1];
         ++i) {
      const auto row = static_cast<std::size_t>(entries[static_cast<std::size_t>(i)]);
      sum += table.at(static_cast<Index>(row), c);
      slopes[row * static_cast<std::size_t>(columns) + static_cast<std::size_t>(c)] +=
          root[static_cast<std::size_t>(b)] * dout.at(b, c);
    }
    want.push_back(root[static_cast<std::size_t>(b)] * sum);
  });
  const List there_offsets(offsets), there_entries(entries), there_tokens(tokens), there_starts(starts),
      there_runs(runs);
  BagTask task{.table = table.as_rows(),
               .out = out.as_rows(),
               .rows = there_entries,
               .offsets = there_offsets,
               .tokens = there_tokens,
               .starts = there_starts,
               .runs = there_runs,
               .bags = 4,
               .run_count = static_cast<Index>(runs.size()),
               .columns = columns};
  started(rows.bag(task, 0, nullptr), words);
  out.down(), close(out, want, words);
  task.table = grad.as_rows(), task.out = dout.as_rows(), task.backward = true;
  started(rows.bag(task, 0, nullptr), words);
  grad.down(), close(grad, slopes, words + " gradient");
}

struct Pooled {
  std::vector<double> out, dx, dquery;
};
Pooled pooled(const Matrix& x, const Matrix& query, const Matrix& dout, const std::vector<std::int32_t>& rows,
              const std::vector<std::int32_t>& offsets, bool queries) {
  const Index columns = x.columns, texts = static_cast<Index>(offsets.size()) - 1, outputs = query.rows;
  const double scale = 1 / std::sqrt(static_cast<double>(columns));
  Pooled r{std::vector<double>(static_cast<std::size_t>(texts * outputs * columns)),
           std::vector<double>(static_cast<std::size_t>(x.rows * columns)), numbers(query)};
  std::fill(r.dquery.begin(), r.dquery.end(), 0.0);
  const auto at = [&](Index i, Index c) { return static_cast<std::size_t>(i * columns + c); };
  for (Index b = 0; b < texts; ++b)
    for (Index o = 0; o < outputs; ++o) {
      std::vector<double> a, da;
      double sum = 0, mean = 0;
      const std::int32_t begin = offsets[static_cast<std::size_t>(b)],
                         end = offsets[static_cast<std::size_t>(b) + 1];
      for (std::int32_t i = begin; i < end; ++i) {
        double score = 0;
        for (Index c = 0; queries && c < columns; ++c)
          score += scale * x.at(rows[static_cast<std::size_t>(i)], c) * query.at(o, c);
        a.push_back(std::exp(score)), sum += a.back();
      }
      for (std::size_t i = 0; i < a.size(); ++i) {
        const Index row = rows[static_cast<std::size_t>(begin) + i];
        a[i] /= sum, da.push_back(0);
        for (Index c = 0; c < columns; ++c)
          r.out[at(b * outputs + o, c)] += a[i] * x.at(row, c),
              da[i] += dout.at(b, o * columns + c) * x.at(row, c);
        mean += a[i] * da[i];
      }
      for (std::size_t i = 0; i < a.size(); ++i) {
        const Index row = rows[static_cast<std::size_t>(begin) + i];
        const double s = queries ? scale * a[i] * (da[i] - mean) : 0;
        for (Index c = 0; c < columns; ++c)
          r.dx[at(row, c)] += a[i] * dout.at(b, o * columns + c) + s * query.at(o, c),
              r.dquery[at(o, c)] += s * x.at(row, c);
      }
    }
  return r;
}

void pools(const RowTable& rows, DType type, Index columns, bool queries) {
  const std::string words =
      "pooling " + std::string(name_of(type)) + " " + std::to_string(columns) + (queries ? "" : " mean");
  const std::vector<std::int32_t> offsets = {0, 1, 40, 45};
  std::vector<std::int32_t> list;
  for (std::int32_t i = 0; i < 45; ++i) list.push_back(i + i / 20);  // rows 20 and 41 belong to no text
  const Index outputs = queries ? 3 : 1;
  Matrix x(type, 48, columns), query(type, outputs, columns), out(type, 3, outputs * columns, false, 0, 0),
      dout(type, 3, outputs * columns), dx(type, 48, columns, false, 0, 0),
      dquery(DType::f32, outputs, columns, false, 0, 0), weights(DType::f32, outputs, 45),
      slopes(DType::f32, outputs, 45);
  cuda_ok(cudaMemset(dx.device, 0, dx.host.size())),
      cuda_ok(cudaMemset(dquery.device, 0, dquery.host.size()));
  const Pooled want = pooled(x, query, dout, list, offsets, queries);
  const List there_rows(list), there_offsets(offsets);
  PoolTask task{.x = x.as_rows(),
                .query = query.as_rows(),
                .out = out.as_rows(),
                .rows = there_rows,
                .offsets = there_offsets,
                .weights = reinterpret_cast<float*>(weights.device),
                .texts = 3,
                .pooled = 45,
                .columns = columns,
                .outputs = outputs,
                .queries = queries,
                .scale = 1 / std::sqrt(static_cast<float>(columns))};
  started(rows.pool(task, 0, nullptr), words);
  out.down(), close(out, want.out, words);
  task.out = dout.as_rows(), task.dx = dx.as_rows(), task.backward = true;
  task.slopes = reinterpret_cast<float*>(slopes.device),
  task.dquery = reinterpret_cast<float*>(dquery.device);
  started(rows.pool(task, 0, nullptr), words + " gradient");
  dx.down(), close(dx, want.dx, words + " gradient");
  if (queries) dquery.down(), close(dquery, want.dquery, words + " gradient of the queries", 1e-4);
}

}  // namespace

void test_texts(const RowTable& rows) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const Index columns : {1, 31, 192, 300}) {
      bags(rows, type, columns);
      pools(rows, type, columns, true), pools(rows, type, columns, false);
    }
}

}  // namespace headwise::cuda
