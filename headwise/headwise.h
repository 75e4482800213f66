// headwise: multi-head attention in which the head is the unit. This is what a C++ user includes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/context.h"
#include "headwise/base/version.h"
#include "headwise/heads/list.inc"
#include "headwise/heads/run.h"
#include "headwise/masks/mask.h"
#include "headwise/ops/activation.h"
#include "headwise/ops/attention.h"
#include "headwise/ops/attention_backward.h"
#include "headwise/ops/explain.h"
#include "headwise/ops/norm.h"
#include "headwise/ops/packed_keys.h"
#include "headwise/ops/projection.h"
#include "headwise/ops/projection_backward.h"
#include "headwise/ops/quantize_kv.h"
#include "headwise/ops/rope.h"
