// Models that are loaded before a process forks, and used in the child.
//
// A fork has one thread. What others were in the middle of stays so for ever: a fork therefore waits
// until no model runs, and where that takes too long the child goes on without what was running.
#include <pthread.h>

#include <chrono>
#include <mutex>
#include <set>
#include <vector>

#include "session.h"

namespace tvm_edge {
namespace {

constexpr std::chrono::seconds kWait{5};

struct Forks {
  std::mutex changing;
  std::set<Session*> all;
  std::vector<std::timed_mutex*> taken;
  std::set<std::timed_mutex*> held;
};
Forks& forks() {
  static auto* forks = new Forks();
  return *forks;
}

void Before() {
  const auto deadline = std::chrono::steady_clock::now() + kWait;
  forks().changing.lock();
  for (Session* session : forks().all) {
    for (std::timed_mutex* lock : session->RunLocks()) {
      // A run may fork itself, in a signal's handler: nobody else would free its lock.
      if (lock->try_lock_until(deadline)) {
        forks().taken.push_back(lock);
      } else {
        forks().held.insert(lock);
      }
    }
  }
}

void After() {
  for (std::timed_mutex* lock : forks().taken) lock->unlock();
  forks().taken.clear();
  forks().held.clear();
  forks().changing.unlock();
}

void InChild() {
  if (!forks().held.empty()) {
    for (Session* session : forks().all) session->ReplaceHeld(forks().held);
  }
  After();
}

}  // namespace

void SurviveForks(Session* session) {
  static const int registered = pthread_atfork(Before, After, InChild);
  (void)registered;
  std::lock_guard<std::mutex> lock(forks().changing);
  forks().all.insert(session);
}

void ForgetForks(Session* session) {
  std::lock_guard<std::mutex> lock(forks().changing);
  forks().all.erase(session);
}

}  // namespace tvm_edge
