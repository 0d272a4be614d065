/* The most that this CPU can do; peaks.py builds and runs it.
 *
 *   cpu_peaks fma THREADS TRIALS     multiply-adds in registers: a line of 10**9 operations/s a trial
 *   cpu_peaks half THREADS TRIALS    the same, with two vectors of float16 widened in every step
 *   cpu_peaks bf16 THREADS TRIALS    the same by products of pairs of bfloat16
 *   cpu_peaks read THREADS TRIALS BYTES     reads of an array: a line of 10**9 bytes/s a trial
 *
 * Exit status 3: the CPU has no such instruction.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Sums that do not wait for each other: two units of latency 4 or 5 need 10. As many as leave
 * registers for two operands: x86 has 32 vector registers with AVX-512 and 16 without, ARM 32. */
#if defined(__AVX512F__)
#define LANES 16
#define SUMS 24
#elif defined(__AVX__)
#define LANES 8
#define SUMS 12
#else
#define LANES 4
#if defined(__aarch64__)
#define SUMS 24
#else
#define SUMS 12
#endif
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));

/* A vector of float16 in memory as float32, and pairs of bfloat16 multiplied and added. */
#if defined(__AVX512F__)
#define WIDEN(at) ((vec)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)(at))))
#elif defined(__F16C__)
#define WIDEN(at) ((vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)(at))))
#elif defined(__aarch64__)
#define WIDEN(at) ((vec)vcvt_f32_f16(vld1_f16((const void *)(at))))
#endif
#if defined(__AVX512BF16__)
#define PAIRS(sum, a, b) ((vec)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(a), (__m512bh)(b)))
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define PAIRS(sum, a, b) ((vec)vbfdotq_f32((float32x4_t)(sum), (bfloat16x8_t)(a), (bfloat16x8_t)(b)))
#endif

#define FMA_STEPS 2000000L
#define READ_SUMS 8
#define BLOCK (READ_SUMS * (long)sizeof(vec))
#define MOST_THREADS 1024

static volatile float sink, half = 0.5f, one = 1.0f; /* unknown to the compiler */
static int reading, trials, threads;
static void (*work)(void);
static double per_step = 2.0; /* operations of a lane */
static long share; /* bytes of a thread, a multiple of BLOCK */
static char *array;
static pthread_barrier_t barrier;
static double starts[MOST_THREADS], ends[MOST_THREADS];

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static float total(const vec *sums, int n) {
  float result = 0;
  for (int k = 0; k < n; ++k)
    for (int lane = 0; lane < LANES; ++lane) result += sums[k][lane];
  return result;
}

static void fma_work(void) {
  vec sums[SUMS], scale = half - (vec){0}, shift = one - (vec){0};
  for (int k = 0; k < SUMS; ++k) sums[k] = shift * (float)k;
  for (long i = 0; i < FMA_STEPS; ++i)
#pragma GCC unroll 24
    for (int k = 0; k < SUMS; ++k) sums[k] = sums[k] * scale + shift;
  sink = total(sums, SUMS);
}

#ifdef WIDEN
static void half_work(void) {
  vec sums[SUMS], scale = half - (vec){0};
  _Alignas(64) short stored[2 * LANES] = {0};
  for (int k = 0; k < SUMS; ++k) sums[k] = scale * (float)k;
  for (long i = 0; i < FMA_STEPS; ++i) {
    __asm__ volatile("" : "+m"(stored));
    vec first = WIDEN(stored), second = WIDEN(stored + LANES);
#pragma GCC unroll 24
    for (int k = 0; k < SUMS; ++k) sums[k] = sums[k] * scale + (k % 2 ? first : second);
  }
  sink = total(sums, SUMS);
}
#endif

#ifdef PAIRS
static void bf16_work(void) {
  vec sums[SUMS], scale = half - (vec){0}, shift = one - (vec){0};
  for (int k = 0; k < SUMS; ++k) sums[k] = shift * (float)k;
  for (long i = 0; i < FMA_STEPS; ++i)
#pragma GCC unroll 24
    for (int k = 0; k < SUMS; ++k) sums[k] = PAIRS(sums[k], scale, shift);
  sink = total(sums, SUMS);
}
#endif

static void read_work(const char *data) {
  vec sums[READ_SUMS];
  memset(sums, 0, sizeof sums);
  for (long at = 0; at < share; at += BLOCK)
#pragma GCC unroll 8
    for (int k = 0; k < READ_SUMS; ++k) sums[k] += ((const vec *)(data + at))[k];
  sink = total(sums, READ_SUMS);
}

static void *worker(void *argument) {
  long self = (long)argument;
  char *mine = array + self * share;
  if (reading) memset(mine, 0, share); /* pages, each near the thread that reads it */
  for (int trial = -1; trial < trials; ++trial) { /* the first warms up */
    pthread_barrier_wait(&barrier);
    starts[self] = now();
    if (reading)
      read_work(mine);
    else
      work();
    ends[self] = now();
    pthread_barrier_wait(&barrier);
    if (self == 0 && trial >= 0) {
      double first = starts[0], last = ends[0];
      for (int i = 1; i < threads; ++i) {
        if (starts[i] < first) first = starts[i];
        if (ends[i] > last) last = ends[i];
      }
      double amount = reading ? (double)share : per_step * LANES * SUMS * FMA_STEPS;
      printf("%.3f\n", amount * threads / (last - first) / 1e9);
    }
  }
  return NULL;
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  reading = !strcmp(argv[1], "read");
  if (!strcmp(argv[1], "fma")) work = fma_work;
#ifdef WIDEN
  if (!strcmp(argv[1], "half")) work = half_work;
#endif
#ifdef PAIRS
  if (!strcmp(argv[1], "bf16")) {
    work = bf16_work;
    per_step = 4.0;
  }
#endif
  if (!work && !reading) return 3;
  threads = atoi(argv[2]);
  trials = atoi(argv[3]);
  if (threads < 1 || threads > MOST_THREADS || (reading && argc < 5)) return 2;
  if (reading) {
    share = atol(argv[4]) / threads / BLOCK * BLOCK;
    array = mmap(NULL, share * threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (array == MAP_FAILED) {
      perror("mmap");
      return 1;
    }
#ifdef MADV_HUGEPAGE
    madvise(array, share * threads, MADV_HUGEPAGE); /* or page tables are read as well */
#endif
  }
  pthread_barrier_init(&barrier, NULL, threads);
  pthread_t others[MOST_THREADS];
  for (long i = 1; i < threads; ++i) {
    if (pthread_create(&others[i], NULL, worker, (void *)i)) {
      perror("pthread_create");
      return 1;
    }
  }
  worker((void *)0);
  for (int i = 1; i < threads; ++i) pthread_join(others[i], NULL);
  return 0;
}
