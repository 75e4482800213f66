// Slices of parameters: what a rank of a tensor team holds of a whole set, by name and sizes, there and back.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/param.h"
#include "headwise/distributed/communicator.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Where `mine` begins in `whole`, and along which axis; axis -1: it is all of it. Sizes that fit no cut over
/// the ranks are refused with the name.
struct SlicePlace {
  int axis = -1;
  Index begin = 0;
};
SlicePlace place_of_slice(const std::string& name, const AnyView& whole, const AnyView& mine, int rank,
                          int ranks);

/// The way back for one slice: it is written into its place of `whole`.
void put_slice(const InputView& mine, const AnyView& whole, const SlicePlace& at);

/// `mine` gets this rank's slice of `whole`, a tensor of that name.
void take_slice(const std::string& name, const AnyView& whole, const AnyView& mine, const Communicator& team);
/// Every parameter of `mine` gets this rank's slice of the one with its name: a cut model starts as the whole
/// one.
void take_slices(const ParamSet& whole, ParamSet& mine, const Communicator& team);
/// The slices of all ranks of one tensor, whole on every rank; copies are written once.
void join_slices(const std::string& name, const AnyView& mine, const AnyView& whole,
                 const Communicator& team);

}  // namespace headwise
#pragma GCC visibility pop
