// Model folders: config.json as text and back, and folders that are written whole or not at all.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "headwise/intent/recognizer/recognizer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// What this library writes and the newest it reads.
inline constexpr Index kModelVersion = 1;

/// config.json, every setting in its line; labels stand in labels.txt.
std::string config_text(const RecognizerConfig& config);
/// The inverse, without labels. Unknown keys are refused by name, newer versions with both numbers.
RecognizerConfig parse_config(std::string_view json, std::string_view where);

/// A folder that appears whole: `fill` writes its files into a folder beside it, which is brought to the disk
/// and renamed. What stood there is replaced only where it holds a file named `mark`.
void replace_folder(const std::string& folder, std::string_view mark, std::string_view op,
                    const std::function<void(const std::string& part)>& fill);
/// Takes a folder away in one step and deletes it then: a kill leaves it whole, or only what remove_left
/// finds. One that is not there is no fault.
void remove_folder(const std::string& folder, std::string_view op);
/// Deletes what killed writers of `folder` left beside it: ".NAME.PID.N.part" and ".gone" of processes that
/// are no more. An ".old" one, which stepped aside for a folder that never came, gets its name back.
void remove_left(const std::string& folder);
/// A file of such a folder, on the disk when it returns.
void write_file(const std::string& path, std::string_view content, std::string_view op);

}  // namespace headwise
#pragma GCC visibility pop
