// Rotary embedding as data and formulas: which dimensions pair up, and how far one pair turns per position.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Which two of the rotary_dim dimensions turn together.
enum class RopeKind {
  half,        // pair i is (i, i + rotary_dim / 2): GPT-NeoX, Hugging Face models
  interleaved  // pair i is (2 i, 2 i + 1): GPT-J, the Llama authors' own files
};

enum class RopeScalingKind { none, linear, ntk, yarn, llama3 };

/// How frequencies change for texts longer than the training length. Each maker names what its kind reads.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1;
  Index original_length = 0;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  double attention_factor = 0;  // yarn: multiplies cos and sin; 0: 0.1 ln(factor) + 1
  double low_freq_factor = 1, high_freq_factor = 4;

  static constexpr RopeScaling linear(double factor) { return with(RopeScalingKind::linear, factor, 0); }
  /// base becomes base * factor^(dim / (dim - 2)).
  static constexpr RopeScaling ntk(double factor) { return with(RopeScalingKind::ntk, factor, 0); }
  /// The dynamic form: the ntk factor for a text of `length` tokens, 1 up to the original length.
  static constexpr RopeScaling dynamic_ntk(double factor, Index length, Index original_length) {
    const double stretch = static_cast<double>(length) / static_cast<double>(original_length);
    return ntk(length <= original_length ? 1.0 : factor * stretch - (factor - 1.0));
  }
  /// beta_fast, beta_slow, truncate and attention_factor keep their defaults until set.
  static constexpr RopeScaling yarn(double factor, Index original_length) {
    return with(RopeScalingKind::yarn, factor, original_length);
  }
  static constexpr RopeScaling llama3(double factor, double low_freq_factor, double high_freq_factor,
                                      Index original_length) {
    RopeScaling s = with(RopeScalingKind::llama3, factor, original_length);
    s.low_freq_factor = low_freq_factor;
    s.high_freq_factor = high_freq_factor;
    return s;
  }
  friend constexpr bool operator==(const RopeScaling&, const RopeScaling&) = default;

 private:
  static constexpr RopeScaling with(RopeScalingKind kind, double factor, Index original_length) {
    RopeScaling s;
    s.kind = kind;
    s.factor = factor;
    s.original_length = original_length;
    return s;
  }
};

inline constexpr Index kWholeHead = -1;

struct RopeOptions {
  RopeKind kind = RopeKind::half;
  Index rotary_dim = kWholeHead;  // the first rotary_dim dimensions turn, the rest are copied; 0: none turns
  double base = 10000;
  RopeScaling scaling = {};
  bool inverse = false;  // by the negative angle: the transpose, which is what backward needs
  friend constexpr bool operator==(const RopeOptions&, const RopeOptions&) = default;
};

/// Positions at which angles are exact to the last bits of a double: from -2^31 to 2^31.
inline constexpr Index kRopeReach = Index{1} << 31;

/// The frequencies of checked options over `dim` rotary dimensions.
struct RopeRule {
  static constexpr double kTurn = 6.283185307179586476925286766559;

  RopeScaling scaling;
  double base = 1, dim = 0;
  double first = 0, last = 1;  // yarn: pairs up to `first` keep their frequency, from `last` on it is divided
  double attention_factor = 1;  // multiplies cos and sin

  RopeRule(const RopeOptions& options, Index rotary_dim)
      : scaling(options.scaling), base(options.base), dim(static_cast<double>(rotary_dim)) {
    if (scaling.kind == RopeScalingKind::ntk && rotary_dim > 2)
      base *= std::pow(scaling.factor, dim / (dim - 2.0));
    if (scaling.kind == RopeScalingKind::yarn) {
      first = pair_with_turns(scaling.beta_fast);
      last = pair_with_turns(scaling.beta_slow);
      if (scaling.truncate) first = std::floor(first), last = std::ceil(last);
      first = std::fmax(first, 0.0);
      last = std::fmin(last, dim - 1.0);
      if (first == last) last += 0.001;
      attention_factor = scaling.attention_factor;
      if (attention_factor == 0.0)
        attention_factor = scaling.factor > 1.0 ? 0.1 * std::log(scaling.factor) + 1.0 : 1.0;
    }
  }

  /// Angle per position of pair i, in radians.
  double frequency(Index i) const {
    const double plain = std::pow(base, -2.0 * static_cast<double>(i) / dim);
    switch (scaling.kind) {
      case RopeScalingKind::none:
      case RopeScalingKind::ntk: return plain;
      case RopeScalingKind::linear: return plain / scaling.factor;
      case RopeScalingKind::yarn: {
        const double ramp = std::fmin(std::fmax((static_cast<double>(i) - first) / (last - first), 0.0), 1.0);
        return plain / scaling.factor * ramp + plain * (1.0 - ramp);
      }
      case RopeScalingKind::llama3: {
        const double turns = static_cast<double>(scaling.original_length) * plain / kTurn;
        const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
        if (turns < low) return plain / scaling.factor;
        if (turns > high) return plain;
        const double smooth = (turns - low) / (high - low);
        return (1.0 - smooth) * plain / scaling.factor + smooth * plain;
      }
    }
    return plain;
  }

 private:
  /// yarn: the (fractional) pair that makes `turns` full turns over the original length.
  double pair_with_turns(double turns) const {
    return dim * std::log(static_cast<double>(scaling.original_length) / (turns * kTurn)) /
           (2.0 * std::log(base));
  }
};

}  // namespace headwise
#pragma GCC visibility pop
