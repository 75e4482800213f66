// Instances of the products of chunks.
#include "headwise/kernels/cuda/chunk/products.cuh"

namespace headwise::cuda::chunk {

template Status chunk_scores<float>(const ChunkScores&, int, int, cudaStream_t);
template Status chunk_scores<bf16>(const ChunkScores&, int, int, cudaStream_t);
template Status chunk_scores<f16>(const ChunkScores&, int, int, cudaStream_t);
template Status chunk_values<float>(const ChunkValues&, int, cudaStream_t);
template Status chunk_values<bf16>(const ChunkValues&, int, cudaStream_t);
template Status chunk_values<f16>(const ChunkValues&, int, cudaStream_t);
template Status chunk_keys<float>(const ChunkKeysBoth&, int, int, cudaStream_t);
template Status chunk_keys<bf16>(const ChunkKeysBoth&, int, int, cudaStream_t);
template Status chunk_keys<f16>(const ChunkKeysBoth&, int, int, cudaStream_t);

}  // namespace headwise::cuda::chunk
