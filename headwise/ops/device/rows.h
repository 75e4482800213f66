// Row operations on a CUDA device: a task is checked and started on a stream; an Error says why it was not.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/device.h"
#include "headwise/kernels/cuda/table/rows.h"

namespace headwise {

/// Each returns at once. Addresses lie on `device`; f32 sums in one order whatever the processors.
void start(const cuda::NormTask& task, Device device, void* stream);
void start(const cuda::NormGradTask& task, Device device, void* stream);
void start(const cuda::ColumnSumTask& task, Device device, void* stream);
void start(const cuda::ActivationTask& task, Device device, void* stream);
void start(const cuda::DropoutTask& task, Device device, void* stream);
void start(const cuda::RopeTask& task, Device device, void* stream);
void start(const cuda::EmbeddingTask& task, Device device, void* stream);
#pragma GCC visibility push(default)  // libheadwise_text starts these two
void start(const cuda::BagTask& task, Device device, void* stream);
void start(const cuda::PoolTask& task, Device device, void* stream);
#pragma GCC visibility pop
void start(const cuda::LossTask& task, Device device, void* stream);
void start(const cuda::BinaryLossTask& task, Device device, void* stream);
void start(const cuda::SgdTask& task, Device device, void* stream);
void start(const cuda::AdamWTask& task, Device device, void* stream);
void start(const cuda::NormOfTask& task, Device device, void* stream);

}  // namespace headwise
