// heads_with_roles: heads that a cut must keep, named by what a survey found them to do.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/lab/model/head_plan.h"
#include "headwise/lab/survey/head_survey.h"

#pragma GCC visibility push(default)
namespace headwise {

/// "positional,syntax,rare" as words, each of them known: a role of kTextFigures, "syntax" for any relation,
/// or the name of a relation that the texts with trees or pairs have. Others are refused with the list.
std::vector<std::string> parse_roles(std::string_view list, const std::vector<RelatedText>& related,
                                     std::string_view op);
/// Heads that have one of them. "positional" and relations count in both directions.
std::vector<HeadName> heads_with_roles(const HeadSurvey& survey, const std::vector<std::string>& roles);

}  // namespace headwise
#pragma GCC visibility pop
