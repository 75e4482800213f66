// MapService: one page of attention on this machine, with its tiles and lines where it is long.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <deque>
#include <thread>

#include "headwise/model/json_object.h"
#include "headwise/server/http_service.h"
#include "headwise/view/deep/deep_map.h"

namespace headwise::server {

class MapService : public HttpService {
 public:
  /// The page holds nothing of the source when there is a map: what it shows it asks for, with the token. A
  /// page without a map needs the token as a browser's password.
  MapService(std::shared_ptr<const std::string> page, std::unique_ptr<DeepMap> map, Listener& listener,
             const std::string& address, HttpServiceOptions options);
  ~MapService() override;

 private:
  struct Job {
    Ticket ticket;
    int work = 0;
    std::string body;
  };
  bool offers(const HttpRoute& route) const override;
  std::optional<HttpResponse> take_own(const HttpRoute& route, const HttpRequest& request, Ticket ticket,
                                       Clock::time_point& until) override;
  // Of the routes that services share, which a page does not offer.
  std::string model_name() const override { return "null"; }
  HttpResponse all_numbers() const override { return HttpService::numbers(0, 0); }
  std::string openapi() const override { return "null"; }
  HttpResponse late(Ticket ticket) override;
  void gone(Ticket ticket) override;
  void work();
  HttpResponse answer(const Job& job);
  HttpResponse about() const;
  HttpResponse opened(Index layer, Index head);
  HttpResponse tile(const JsonObject& ask, Index layer, Index head);
  HttpResponse numbers(const JsonObject& ask, Index layer, Index head);
  HttpResponse line(const JsonObject& ask, Index layer, Index head);
  HttpResponse sums(Index layer, Index head);
  HttpResponse tokens(const JsonObject& ask) const;
  HttpResponse found(const JsonObject& ask) const;

  std::shared_ptr<const std::string> page_;
  std::unique_ptr<DeepMap> map_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool ending_ = false;
  std::thread worker_;
};

}  // namespace headwise::server
