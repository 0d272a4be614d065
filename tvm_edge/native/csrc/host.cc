#include "host.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "error.h"
#include "text.h"

namespace tvm_edge {
namespace {

using Names = std::vector<std::pair<const char*, const char*>>;

/*! \brief LLVM's name and Linux's flag, of what LLVM may emit on its own (tvm_edge/host.py). */
const Names& X86Features() {
  static const Names names{
      {"sse3", "pni"}, {"ssse3", "ssse3"}, {"sse4.1", "sse4_1"}, {"sse4.2", "sse4_2"},
      {"sse4a", "sse4a"}, {"popcnt", "popcnt"}, {"avx", "avx"}, {"avx2", "avx2"}, {"fma", "fma"},
      {"f16c", "f16c"}, {"bmi", "bmi1"}, {"bmi2", "bmi2"}, {"lzcnt", "abm"}, {"movbe", "movbe"},
      {"adx", "adx"}, {"avx512f", "avx512f"}, {"avx512cd", "avx512cd"}, {"avx512bw", "avx512bw"},
      {"avx512dq", "avx512dq"}, {"avx512vl", "avx512vl"}, {"avx512ifma", "avx512ifma"},
      {"avx512vbmi", "avx512vbmi"}, {"avx512vbmi2", "avx512_vbmi2"}, {"avx512vnni", "avx512_vnni"},
      {"avx512bitalg", "avx512_bitalg"}, {"avx512vpopcntdq", "avx512_vpopcntdq"},
      {"avx512bf16", "avx512_bf16"}, {"avx512fp16", "avx512_fp16"},
      {"avx512vp2intersect", "avx512_vp2intersect"}, {"avxvnni", "avx_vnni"},
      {"avxvnniint8", "avx_vnni_int8"}, {"avxifma", "avx_ifma"}, {"gfni", "gfni"}, {"vaes", "vaes"},
      {"vpclmulqdq", "vpclmulqdq"}, {"amx-tile", "amx_tile"}, {"amx-int8", "amx_int8"},
      {"amx-bf16", "amx_bf16"}};
  return names;
}

const Names& Aarch64Features() {
  static const Names names{
      {"neon", "asimd"}, {"fp-armv8", "fp"}, {"fullfp16", "asimdhp"}, {"dotprod", "asimddp"},
      {"lse", "atomics"}, {"rdm", "asimdrdm"}, {"i8mm", "i8mm"}, {"bf16", "bf16"}, {"sve", "sve"},
      {"sve2", "sve2"}};
  return names;
}

std::vector<std::string> LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::set<std::string> WordsOf(const std::string& text) {
  std::istringstream words(text);
  std::set<std::string> found;
  for (std::string word; words >> word;) found.insert(word);
  return found;
}

std::string Stripped(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

/*! \brief Cores' worth of time: microseconds of each period; negative without a limit. */
double Cores(const std::string& quota, const std::string& period) {
  char *end_of_quota = nullptr, *end_of_period = nullptr;
  const double limit = std::strtod(quota.c_str(), &end_of_quota);
  const double of = std::strtod(period.c_str(), &end_of_period);
  if (end_of_quota == quota.c_str() || end_of_period == period.c_str() || of == 0) return -1;
  return limit / of;  // "max" is no number
}

double LimitOf(const std::string& group, bool version_2) {
  if (version_2) {
    const auto lines = LinesOf(group + "/cpu.max");
    std::istringstream words(lines.empty() ? "" : lines[0]);
    std::string quota, period;
    return words >> quota >> period ? Cores(quota, period) : -1;
  }
  const auto quota = LinesOf(group + "/cpu.cfs_quota_us");
  const auto period = LinesOf(group + "/cpu.cfs_period_us");
  return quota.empty() || period.empty() ? -1 : Cores(quota[0], period[0]);
}

/*! \brief Cores' worth of time that control groups grant, of version 1 or 2; negative: any. */
double CpuQuota() {
  double least = -1;
  for (const std::string& line : LinesOf("/proc/self/cgroup")) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version_2 = controllers.empty();
    if (!version_2 && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    std::string root = "/sys/fs/cgroup";
    if (!version_2) root += LinesOf(root + "/cpu/cpu.shares").empty() ? "/" + controllers : "/cpu";
    // In a container the path may be the host's, and its own group is the root.
    std::string path = Stripped(line.substr(second + 1));
    while (true) {
      const double limit = LimitOf(root + path, version_2);
      if (limit > 0 && (least < 0 || limit < least)) least = limit;
      if (path.empty() || path == "/") break;
      path = path.substr(0, path.rfind('/'));
    }
  }
  return least;
}

std::string RangesText(const std::vector<int>& cpus) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    parts.push_back(std::to_string(cpus[i]) +
                    (end - i > 1 ? "-" + std::to_string(cpus[end - 1]) : ""));
    i = end;
  }
  return Joined(parts, ",");
}

std::vector<int> CheckedCpus(std::vector<int> cpus) {
  const std::vector<int> allowed = AllowedCpus();
  const std::string what = "this process may use " + RangesText(allowed);
  std::vector<std::string> given, missing;
  for (int cpu : cpus) given.push_back(std::to_string(cpu));
  int least = std::numeric_limits<int>::max();  // of those that are missing
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  for (int cpu : cpus) {
    if (std::count(allowed.begin(), allowed.end(), cpu)) continue;
    missing.push_back(std::to_string(cpu));
    least = std::min(least, cpu);
  }
  if (!missing.empty()) {
    const bool exist = least < sysconf(_SC_NPROCESSORS_ONLN);
    ThrowInput("cpus has " + Joined(missing) + ", which " +
                   (exist ? "are not allowed or do not exist" : "do not exist") + " here; " + what,
               {"cpus", "CPUs among " + RangesText(allowed), "[" + Joined(given) + "]"});
  }
  return cpus;
}

constexpr int64_t kMostThreads = 1024;

int64_t CheckedCount(int64_t count, const std::string& text, const std::string& source) {
  if (count >= 1 && count <= kMostThreads) return count;
  ThrowInput(source + " is " + text + ", and must be a positive number of at most " +
                 std::to_string(kMostThreads) + "; this machine has " +
                 std::to_string(PhysicalCores(AllowedCpus())) + " physical cores",
             {"num_threads", "a positive integer", text});
}

int64_t CountOf(const std::string& text) {
  const bool digits = !text.empty() && text.size() < 10 &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  return digits ? std::stoll(text) : -1;
}

int64_t SpinNs() {
  const char* value = std::getenv("TVM_EDGE_SPIN");
  if (value == nullptr || !*value) return 50000;  // between two kernels the machine takes less
  const int64_t spin = CountOf(value);
  if (spin < 0 || spin > 1000000) {
    ThrowInput("the environment variable TVM_EDGE_SPIN is " + std::string(value) +
                   ", and must be the microseconds, at most 1000000, that a worker looks for the "
                   "next kernel before it sleeps",
               {"TVM_EDGE_SPIN", "0 to 1000000", value});
  }
  return 1000 * spin;
}

}  // namespace

std::string Architecture() {
  struct utsname name;
  uname(&name);
  std::string machine(name.machine);
  std::transform(machine.begin(), machine.end(), machine.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (machine == "amd64") return "x86_64";
  return machine == "arm64" ? "aarch64" : machine;
}

std::optional<std::vector<std::string>> HostFeatures() {
  const std::string machine = Architecture();
  if (machine != "x86_64" && machine != "aarch64") return std::nullopt;
  const bool x86 = machine == "x86_64";
  std::optional<std::set<std::string>> flags;
  for (const std::string& line : LinesOf("/proc/cpuinfo")) {
    const size_t colon = line.find(':');
    if (colon == line.npos || Stripped(line.substr(0, colon)) != (x86 ? "flags" : "Features")) {
      continue;
    }
    const std::set<std::string> present = WordsOf(line.substr(colon + 1));
    if (!flags) {
      flags = present;
      continue;
    }
    // A feature must be on every core: big.LITTLE may differ.
    for (auto flag = flags->begin(); flag != flags->end();) {
      flag = present.count(*flag) ? std::next(flag) : flags->erase(flag);
    }
  }
  // Where a program is emulated, the file may be the other machine's.
  if (!flags) return std::nullopt;
  std::vector<std::string> features;
  for (const auto& [llvm, linux_name] : x86 ? X86Features() : Aarch64Features()) {
    if (flags->count(linux_name)) features.emplace_back(llvm);
  }
  return features;
}

void CheckHost(const std::string& what, const std::string& architecture,
               const std::vector<std::string>& features) {
  if (architecture != Architecture()) {
    ThrowArtifact(what + " is compiled for " + architecture + ", and this machine is " +
                  Architecture() +
                  "; run it there, or compile it with target='llvm' here");
  }
  static const auto here = HostFeatures();
  if (!here) return;
  std::vector<std::string> missing;
  for (const std::string& feature : features) {
    if (!std::count(here->begin(), here->end(), feature)) missing.push_back(feature);
  }
  if (missing.empty()) return;
  std::sort(missing.begin(), missing.end());
  Throw(kDeviceUnavailableError,
        what + " is compiled for a CPU with " + Joined(missing) +
            ", which this CPU lacks; compile it with target='llvm' on this machine or name its "
            "CPU: {'kind': 'llvm', 'mcpu': ...}");
}

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set)) return {0};
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

int PhysicalCores(const std::vector<int>& cpus) {
  std::set<std::string> siblings;
  for (int cpu : cpus) {
    const auto lines = LinesOf("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                               "/topology/thread_siblings_list");
    // A container without sysfs: every CPU is its own core.
    siblings.insert(lines.empty() ? std::to_string(cpu) : Stripped(lines[0]));
  }
  const int count = static_cast<int>(siblings.size());
  const double quota = CpuQuota();
  return quota < 0 ? count : std::max(1, std::min(count, static_cast<int>(quota)));
}

ThreadChoice ResolveThreads(int64_t num_threads, const std::vector<int>& cpus) {
  ThreadChoice choice;
  choice.cpus = CheckedCpus(cpus);
  const std::vector<int> usable = cpus.empty() ? AllowedCpus() : choice.cpus;
  const int cores = PhysicalCores(usable);
  const char* variable = std::getenv("TVM_NUM_THREADS");
  if (num_threads != 0) {
    choice.count = CheckedCount(num_threads, std::to_string(num_threads), "num_threads");
  } else if (variable != nullptr && *variable) {
    choice.count =
        CheckedCount(CountOf(variable), variable, "the environment variable TVM_NUM_THREADS");
  } else {
    choice.count = cores;
  }
  if (choice.count > static_cast<int64_t>(usable.size())) {
    Log("warning", std::to_string(choice.count) + " threads were asked for and kernels run on " +
                       std::to_string(usable.size()) + ": each has a CPU of its own");
    choice.count = static_cast<int64_t>(usable.size());
  }
  choice.capacity = std::max<int64_t>(choice.count, cores);
  choice.spin_ns = SpinNs();
  return choice;
}

}  // namespace tvm_edge
