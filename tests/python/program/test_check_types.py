"""tools/check_types.py: finds two definitions of one qualified type name, and only those."""
# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "tools"))
import check_types  # noqa: E402

PANEL = "namespace hw::cpu {\n/// struct Panel { in words\nstruct alignas(64) Panel final : Base<int> {\n  float* top;\n};\n}\n"


@pytest.mark.parametrize("other, faults", [
    ("namespace hw {\nnamespace cpu {\nclass Panel {};\n}\n}", 1),
    ("namespace hw::cpu { enum class Panel : int { a }; }", 1),
    ("namespace hw { struct Panel {}; }", 0),  # another namespace
    ("namespace hw::cpu { struct Panel; }", 0),  # a mention
    ("namespace hw::cpu { struct Run { struct Panel {}; }; }", 0),  # inside another type
    ("namespace hw::cpu {\nnamespace {\nstruct Panel {};\n}\n}", 0),  # no other file can mean it
    ("namespace hw::cpu { inline int f(int (*g)()) { struct Panel {}; return g(); } }", 0),  # nor this
    ('namespace hw::cpu { const char* text = "struct Panel {"; }', 0),
    ("namespace hw::cpu { template <> struct Panel<int> {}; }", 0),  # a specialisation
])
def test_finds_two_definitions_of_one_name(other, faults):
    found = list(check_types.faults_in([("a.h", PANEL), ("b.h", other)]))
    assert len(found) == faults
    assert all("hw::cpu::Panel is also defined at a.h:3" in fault for fault in found)


@pytest.mark.parametrize("other, faults", [
    ("namespace hw { inline constexpr int kNames[3] = {1, 2, 3}; }", 1),
    ("namespace hw { inline constexpr double kNames = 3; }", 1),
    ("namespace hw { inline constexpr Table<int, 3> kNames{1, 2}; }", 1),
    ("namespace hw::cpu { inline constexpr int kNames = 3; }", 0),  # another namespace
    ("namespace hw { constexpr int kNames = 3; }", 0),  # its file's own
    ("namespace hw { inline constexpr int f(int) { return kNames; } }", 0),  # a use
    ("namespace hw { inline constexpr int kOther = kNames; }", 0),
])
def test_finds_two_constants_of_one_name(other, faults):
    names = 'namespace hw {\ninline constexpr std::string_view kNames[] = {"a",\n  "b"};\n}\n'
    found = list(check_types.faults_in([("a.h", names), ("b.h", other)]))
    assert len(found) == faults
    assert all("hw::kNames is also defined at a.h:2" in fault for fault in found)
