#include "captures.h"

#include <tvm/ffi/reflection/registry.h>

#include <algorithm>

namespace tvm_edge {

Captures& Captures::Global() {
  static auto* captures = new Captures();
  return *captures;
}

Captures::Turn& Captures::OwnTurn() {
  thread_local Turn turn;
  return turn;
}

Captures::Shared::Shared(Captures* captures)
    : captures_(captures), outermost_(OwnTurn().captures == nullptr) {
  if (!outermost_) return;
  std::unique_lock<std::mutex> lock(captures->lock_);
  captures->changed_.wait(lock, [captures] { return captures->alone_.empty(); });
  ++captures->sharing_;
  OwnTurn() = {captures, false};
}

Captures::Shared::~Shared() {
  if (!outermost_) return;
  std::lock_guard<std::mutex> lock(captures_->lock_);
  Turn& turn = OwnTurn();
  if (turn.alone) {
    auto& alone = captures_->alone_;
    alone.erase(std::remove(alone.begin(), alone.end(), &turn), alone.end());
  } else {
    --captures_->sharing_;
  }
  turn = {};
  captures_->changed_.notify_all();
}

void Captures::StayAlone() {
  Turn& turn = OwnTurn();
  if (turn.captures != this) return;
  if (turn.alone) return;
  std::unique_lock<std::mutex> lock(lock_);
  turn.alone = true;
  --sharing_;
  alone_.push_back(&turn);
  changed_.notify_all();
  changed_.wait(lock, [&] { return alone_.front() == &turn && sharing_ == 0; });
}

void RegisterCaptures() {
  tvm::ffi::reflection::GlobalDef().def("vm.builtin.tvm_edge.recording", [](int64_t) {
    Captures::Global().StayAlone();
  });
}

}  // namespace tvm_edge
