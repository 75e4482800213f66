#include "headwise/cli/ranks/held_signals.h"

namespace headwise::cli {
namespace {

volatile std::sig_atomic_t term_came = 0, int_came = 0;

void keep(int signal) {
  if (signal == SIGTERM)
    term_came = 1;
  else
    int_came = 1;
}

}  // namespace

HeldSignals::HeldSignals() {
  term_came = 0;
  int_came = 0;
  struct sigaction ours {};
  ours.sa_handler = keep;
  ours.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &ours, &old_term_);
  ::sigaction(SIGINT, &ours, &old_int_);
}

HeldSignals::~HeldSignals() {
  ::sigaction(SIGTERM, &old_term_, nullptr);
  ::sigaction(SIGINT, &old_int_, nullptr);
  if (int_came != 0) ::raise(SIGINT);
  if (term_came != 0) ::raise(SIGTERM);
}

}  // namespace headwise::cli
