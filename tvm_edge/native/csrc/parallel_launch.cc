// The worker pool under kernels that TVM compiled.
//
// Generated code launches its parallel loops through a pointer that TVM sets when it loads a
// library, or makes code in memory. While a process attaches, that pointer is to Launch here; what
// others load keeps TVM's own pool.
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/c_backend_api.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "parallel_launch.h"
#include "worker_pool.h"

namespace tvm_edge {
namespace ffi = tvm::ffi;
namespace {

constexpr const char* kLaunchSymbol = "__TVMBackendParallelLaunch";
constexpr const char* kBarrierSymbol = "__TVMBackendParallelBarrier";

// ---------------------------------------------------------------------------------------- pools

/*! \brief The pools of this process, by the CPUs that they keep to; they are never freed. */
struct Pools {
  std::mutex lock;
  std::map<std::vector<int>, WorkerPool*> by_cpus;
};

Pools& pools() {
  static auto* pools = new Pools();
  return *pools;
}

/*! \brief What kernels that this thread launches run on. */
thread_local WorkerPool* thread_pool = nullptr;
thread_local int thread_count = 1;
thread_local int64_t thread_uses = 0;

void BeforeFork() {
  pools().lock.lock();
  for (auto& [cpus, pool] : pools().by_cpus) pool->LockForFork();
}

void AfterForkInParent() {
  for (auto& [cpus, pool] : pools().by_cpus) pool->UnlockInParent();
  pools().lock.unlock();
}

void AfterForkInChild() {
  for (auto& [cpus, pool] : pools().by_cpus) pool->RestartInChild();
  pools().lock.unlock();
}

}  // namespace

int64_t UseThreads(int64_t threads, const std::vector<int>& key, int64_t capacity,
                   int64_t spin_ns) {
  WorkerPool* pool;
  {
    std::lock_guard<std::mutex> lock(pools().lock);
    static const int registered = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
    (void)registered;
    WorkerPool*& found = pools().by_cpus[key];
    if (found == nullptr) found = new WorkerPool(key, static_cast<int>(capacity), spin_ns);
    pool = found;
  }
  pool->RaiseCapacity(static_cast<int>(std::max(capacity, threads)));
  thread_pool = pool;
  ++thread_uses;
  const int there = pool->Reserve(static_cast<int>(threads));
  thread_count = std::min(there, std::max(pool->AllowedCpus(), 1));
  return thread_count;
}

namespace {

// --------------------------------------------------------------------------- what kernels call

/*! \brief A launch by generated code. */
struct Launched {
  FTVMParallelLambda function;
  void* data;
  std::atomic<TVMFFIObjectHandle> error{nullptr};
  std::atomic<bool> refused{false};  // it came to a barrier

  static int RunPiece(void* context, int32_t piece, int32_t pieces) {
    auto* self = static_cast<Launched*>(context);
    TVMParallelGroupEnv env{self, pieces};
    int status = self->function(piece, &env, self->data);
    if (self->refused.load(std::memory_order_relaxed)) {
      TVMFFIErrorSetRaisedFromCStr(
          "RuntimeError",
          "a kernel waits at a barrier for pieces that nobody may have begun: tvm-edge's worker "
          "pool does not run all pieces at once; compile it without parallel_barrier_when_finish");
      status = -1;
    }
    if (status != 0) self->KeepError();
    return status;
  }

  /*! \brief Take this thread's error, which belongs to the one that launched the kernel. */
  void KeepError() {
    TVMFFIObjectHandle raised = nullptr;
    TVMFFIErrorMoveFromRaised(&raised);
    TVMFFIObjectHandle none = nullptr;
    if (raised != nullptr && !error.compare_exchange_strong(none, raised)) {
      TVMFFIObjectDecRef(raised);
    }
  }
};

int Launch(FTVMParallelLambda function, void* data, int num_task) {
  Launched launched{function, data};
  int status;
  if (thread_pool == nullptr || num_task == 1) {
    status = Launched::RunPiece(&launched, 0, 1);
  } else {
    const Work work{Launched::RunPiece, &launched, reinterpret_cast<const void*>(function)};
    status = thread_pool->Run(work, thread_count);
  }
  if (TVMFFIObjectHandle error = launched.error.load(); error != nullptr) {
    TVMFFIErrorSetRaised(error);
    TVMFFIObjectDecRef(error);
  }
  return status;
}

/*! \brief Generated code does not look at what this returns: the piece fails instead. */
int Barrier(int, TVMParallelGroupEnv* env) {
  if (env->num_task > 1) static_cast<Launched*>(env->sync_handle)->refused.store(true);
  return 0;
}

// ---------------------------------------------------------------------------------- attachment

/*! \brief Code that is loaded while somebody attaches has its kernels on our pool. */
class Attachment {
 public:
  void Attach() {
    std::lock_guard<std::mutex> lock(lock_);
    if (count_++ > 0) return;
    launch_ = Registered(kLaunchSymbol, reinterpret_cast<void*>(&TVMBackendParallelLaunch));
    barrier_ = Registered(kBarrierSymbol, reinterpret_cast<void*>(&TVMBackendParallelBarrier));
    Register(reinterpret_cast<void*>(&Launch), reinterpret_cast<void*>(&Barrier));
  }

  void Detach() {
    std::lock_guard<std::mutex> lock(lock_);
    if (--count_ == 0) Register(launch_, barrier_);
  }

 private:
  static void Register(void* launch, void* barrier) {
    TVMFFIEnvModRegisterContextSymbol(kLaunchSymbol, launch);
    TVMFFIEnvModRegisterContextSymbol(kBarrierSymbol, barrier);
  }

  static void* Registered(const std::string& wanted, void* otherwise) {
    void* found = otherwise;
    ffi::Module::VisitContextSymbols(
        ffi::TypedFunction<void(ffi::String, void*)>([&](const ffi::String& name, void* symbol) {
          if (std::string(name) == wanted) found = symbol;
        }));
    return found;
  }

  std::mutex lock_;
  int count_ = 0;
  void* launch_ = nullptr;
  void* barrier_ = nullptr;
};

Attachment& attachment() {
  static auto* attachment = new Attachment();
  return *attachment;
}

/*! \brief Counts of all pools, and their workers. */
ffi::Map<ffi::String, int64_t> Counts() {
  PoolCounts sum;
  int64_t workers = 0;
  std::lock_guard<std::mutex> lock(pools().lock);
  for (auto& [cpus, pool] : pools().by_cpus) {
    const PoolCounts counts = pool->counts();
    sum.launches += counts.launches;
    sum.alone += counts.alone;
    sum.helped += counts.helped;
    sum.wakes += counts.wakes;
    sum.sleeps += counts.sleeps;
    sum.waited += counts.waited;
    sum.moved += counts.moved;
    sum.rests += counts.rests;
    workers += pool->workers();
  }
  return {{"launches", sum.launches}, {"alone", sum.alone},   {"helped", sum.helped},
          {"wakes", sum.wakes},       {"sleeps", sum.sleeps}, {"waited", sum.waited},
          {"moved", sum.moved},       {"rests", sum.rests},   {"workers", workers}};
}

}  // namespace

int64_t ThreadUses() { return thread_uses; }

void ExpectLaunches() {
  if (thread_pool != nullptr) thread_pool->ExpectLaunches();
}

KernelsOnPool::KernelsOnPool() { attachment().Attach(); }
KernelsOnPool::~KernelsOnPool() { attachment().Detach(); }

void UsePoolIn(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  const auto set = [library](const char* name, void* function) {
    // A variable of the library, which has one only if it calls the function.
    if (void* symbol = dlsym(library, name)) *static_cast<void**>(symbol) = function;
  };
  set(kLaunchSymbol, reinterpret_cast<void*>(&Launch));
  set(kBarrierSymbol, reinterpret_cast<void*>(&Barrier));
  dlclose(library);
}

void RegisterPool() {
  tvm::ffi::reflection::GlobalDef()
      .def("tvm_edge.pool.use",
           [](int64_t threads, const ffi::Array<int64_t>& cpus, int64_t capacity,
              int64_t spin_ns) {
             return UseThreads(threads, {cpus.begin(), cpus.end()}, capacity, spin_ns);
           })
      .def("tvm_edge.pool.attach", [] { attachment().Attach(); })
      .def("tvm_edge.pool.detach", [] { attachment().Detach(); })
      .def("tvm_edge.pool.threads", [] { return static_cast<int64_t>(thread_count); })
      .def("tvm_edge.pool.counts", Counts);
}

}  // namespace tvm_edge
