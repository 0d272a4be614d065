/*
 * Run models that tvm-edge compiled, without Python.
 *
 * Every function that can fail returns a status, and leaves a message for the calling thread
 * (tvm_edge_last_error). Nothing is thrown. Functions may be called from any thread, on one model
 * or several. Names of functions and fields stay; fields are added at the end of structs that
 * begin with struct_size.
 */
#ifndef TVM_EDGE_TVM_EDGE_H_
#define TVM_EDGE_TVM_EDGE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef TVM_EDGE_API
#define TVM_EDGE_API __attribute__((visibility("default")))
#endif

/* Rises when a program must be compiled anew; the number at the end of the library's name. */
#define TVM_EDGE_ABI_VERSION 0

/* Dimensions that a tensor may have at most. */
#define TVM_EDGE_MAX_DIMS 8

typedef enum tvm_edge_status {
  TVM_EDGE_OK = 0,
  /* A wrong name, shape, type or value of an input or an option. */
  TVM_EDGE_INPUT_ERROR = 1,
  /* An artifact that is absent, truncated, altered, or made for another machine or version. */
  TVM_EDGE_ARTIFACT_ERROR = 2,
  /* The device, its driver or a CPU feature that the code needs is not here. */
  TVM_EDGE_DEVICE_UNAVAILABLE = 3,
  TVM_EDGE_OUT_OF_MEMORY = 4,
  /* A handle that was never made, or that was freed. */
  TVM_EDGE_INVALID_HANDLE = 5,
  /* A bug of tvm-edge, or of a driver. */
  TVM_EDGE_INTERNAL_ERROR = 6
} tvm_edge_status;

/* DLPack's numbers. */
typedef enum tvm_edge_device_type {
  TVM_EDGE_CPU = 1,
  TVM_EDGE_CUDA = 2,
  TVM_EDGE_OPENCL = 4
} tvm_edge_device_type;

/* DLPack's numbers. */
typedef enum tvm_edge_type_code {
  TVM_EDGE_INT = 0,
  TVM_EDGE_UINT = 1,
  TVM_EDGE_FLOAT = 2,
  TVM_EDGE_BFLOAT = 4,
  TVM_EDGE_BOOL = 6
} tvm_edge_type_code;

typedef struct tvm_edge_dtype {
  uint8_t code; /* tvm_edge_type_code */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} tvm_edge_dtype;

/*
 * A tensor: elements in order, without gaps.
 *
 * Of an output, data may be null: then the library owns the memory, and tvm_edge_release gives it
 * back. Otherwise the result is written to data, which has room for nbytes. Either way shape,
 * ndim, dtype and nbytes are filled in. Data of an output may be memory of a device, too.
 */
typedef struct tvm_edge_tensor {
  const char* name;
  void* data;
  size_t nbytes;
  tvm_edge_dtype dtype;
  int32_t ndim;
  int64_t shape[TVM_EDGE_MAX_DIMS];
  int32_t device_type; /* tvm_edge_device_type; 0 is TVM_EDGE_CPU */
  int32_t device_id;
  void* owner; /* the library's */
} tvm_edge_tensor;

/* A dimension of an input or output. Of an open one, length is -1. */
typedef struct tvm_edge_dim {
  int64_t length;
  const char* name; /* of an open dimension; null otherwise */
  int64_t min;
  int64_t max; /* -1: no limit */
  int64_t multiple;
} tvm_edge_dim;

/* Name, shape and type of an input or output; what it points to lives as long as the model. */
typedef struct tvm_edge_spec {
  size_t struct_size; /* to be set before the call: sizeof(tvm_edge_spec) */
  const char* name;
  tvm_edge_dtype dtype;
  int32_t ndim;
  tvm_edge_dim dims[TVM_EDGE_MAX_DIMS];
} tvm_edge_spec;

typedef struct tvm_edge_load_options {
  size_t struct_size;  /* sizeof(tvm_edge_load_options) */
  const char* device;  /* "opencl:1"; null: the first of the kind it was compiled for */
  int32_t num_threads; /* 0: TVM_NUM_THREADS, else all physical cores that the process may use */
  const int32_t* cpus; /* CPUs that kernels keep to, by Linux's numbers; null: all */
  size_t num_cpus;
  int32_t copy; /* 1: read the weights, so that the file may be written or removed */
} tvm_edge_load_options;

typedef struct tvm_edge_run_options {
  size_t struct_size;        /* sizeof(tvm_edge_run_options) */
  const char* const* models; /* of an artifact with several, those to run; null: all */
  size_t num_models;
  int32_t device_outputs; /* 1: outputs without data stay where they are, as tensors of a device */
} tvm_edge_run_options;

/* What is wrong with which argument; empty strings where nothing is known. */
typedef struct tvm_edge_error {
  size_t struct_size; /* sizeof(tvm_edge_error) */
  tvm_edge_status status;
  const char* message;
  const char* name;
  const char* expected;
  const char* got;
} tvm_edge_error;

typedef enum tvm_edge_memory_kind {
  TVM_EDGE_HOST_MEMORY = 1, /* the calling process's, for a device that is its CPU */
  TVM_EDGE_CL_MEM = 2,      /* a buffer in the context of tvm_edge_opencl_context */
  TVM_EDGE_DMA_BUF = 3      /* of a camera or codec, by its file descriptor */
} tvm_edge_memory_kind;

/* Memory of somebody else's, for tvm_edge_import. */
typedef struct tvm_edge_memory {
  size_t struct_size; /* sizeof(tvm_edge_memory) */
  int32_t kind;       /* tvm_edge_memory_kind */
  int32_t fd;         /* of a dma-buf */
  void* address;      /* of memory of the host; or the cl_mem */
  size_t nbytes;      /* how much of it, from the beginning on */
} tvm_edge_memory;

typedef struct tvm_edge_model tvm_edge_model;
typedef struct tvm_edge_pending tvm_edge_pending;
typedef struct tvm_edge_stream tvm_edge_stream;
typedef struct tvm_edge_buffer tvm_edge_buffer;

/* ------------------------------------------------------------------- versions, errors, log */

/* TVM_EDGE_ABI_VERSION of the library. */
TVM_EDGE_API uint32_t tvm_edge_abi_version(void);

/* Version of tvm-edge: "0.2.0". */
TVM_EDGE_API const char* tvm_edge_version(void);

/* Message of the last call of this thread that failed; until its next call that fails. */
TVM_EDGE_API const char* tvm_edge_last_error(void);

/* The same with its parts. */
TVM_EDGE_API tvm_edge_status tvm_edge_last_error_details(tvm_edge_error* error);

typedef void (*tvm_edge_log)(void* context, const char* level, const char* message);

/*
 * Have messages of the library handed to a function, from any thread; null: nowhere. The level is
 * "info" or "warning". The function calls nothing of this library.
 */
TVM_EDGE_API void tvm_edge_set_log(tvm_edge_log log, void* context);

/* ------------------------------------------------------------------------------- loading */

/*
 * Load an artifact from a file, whose weights are mapped.
 *
 * While the model is in use, replace the file by renaming another one. After a write in place
 * every run fails.
 */
TVM_EDGE_API tvm_edge_status tvm_edge_load(const char* path, const tvm_edge_load_options* options,
                                           tvm_edge_model** model);

/* The same from an open file, which may be closed afterwards. */
TVM_EDGE_API tvm_edge_status tvm_edge_load_fd(int fd, const tvm_edge_load_options* options,
                                              tvm_edge_model** model);

typedef void (*tvm_edge_release_memory)(void* context);

/*
 * Load an artifact that lies in memory. Weights are used where they lie, if the memory begins on
 * 64 bytes and options do not ask for a copy; until the model is freed, nobody may write there.
 *
 * release, which may be null, is called once nothing refers to the memory any more; also when the
 * call fails.
 */
TVM_EDGE_API tvm_edge_status tvm_edge_load_memory(const void* data, size_t nbytes,
                                                  tvm_edge_release_memory release, void* context,
                                                  const tvm_edge_load_options* options,
                                                  tvm_edge_model** model);

/* Free a model. Runs that have begun, and those that wait, go on; outputs live on. */
TVM_EDGE_API tvm_edge_status tvm_edge_free(tvm_edge_model* model);

/* ----------------------------------------------------------------------------- description */

TVM_EDGE_API tvm_edge_status tvm_edge_num_inputs(tvm_edge_model* model, size_t* count);
TVM_EDGE_API tvm_edge_status tvm_edge_num_outputs(tvm_edge_model* model, size_t* count);
TVM_EDGE_API tvm_edge_status tvm_edge_num_models(tvm_edge_model* model, size_t* count);
TVM_EDGE_API tvm_edge_status tvm_edge_input(tvm_edge_model* model, size_t index,
                                            tvm_edge_spec* spec);
TVM_EDGE_API tvm_edge_status tvm_edge_output(tvm_edge_model* model, size_t index,
                                             tvm_edge_spec* spec);
/* Name of one of several models. */
TVM_EDGE_API tvm_edge_status tvm_edge_model_name(tvm_edge_model* model, size_t index,
                                                 const char** name);

/* -------------------------------------------------------------------------------- running */

/*
 * Run a model once.
 *
 * inputs: each of the inputs of the models that run, once, in any order, by name. Data in host
 * memory is the caller's again when the call returns. Memory that begins on 64 bytes is used where
 * it is, on a CPU mostly any memory; other data is copied.
 *
 * outputs: those that are wanted, by name. An output without data whose memory the library still
 * owns is released first, so that one array serves run after run. Kernels of the CPU write to data
 * that begins on 64 bytes and overlaps with no input: nothing is copied, and after a run that failed
 * its content is unknown. Other results are copied there.
 */
TVM_EDGE_API tvm_edge_status tvm_edge_run(tvm_edge_model* model,
                                          const tvm_edge_run_options* options,
                                          const tvm_edge_tensor* inputs, size_t num_inputs,
                                          tvm_edge_tensor* outputs, size_t num_outputs);

/* Give the memory of an output back that the library owns. */
TVM_EDGE_API void tvm_edge_release(tvm_edge_tensor* tensor);

/*
 * Run a model in the background, one run after the other, in order.
 *
 * Inputs in host memory are copied before the call returns. outputs, and what they point to, stay
 * until tvm_edge_wait has returned. With max_pending runs that are not done, the call waits.
 */
TVM_EDGE_API tvm_edge_status tvm_edge_run_async(tvm_edge_model* model,
                                                const tvm_edge_run_options* options,
                                                const tvm_edge_tensor* inputs, size_t num_inputs,
                                                tvm_edge_tensor* outputs, size_t num_outputs,
                                                size_t max_pending, tvm_edge_pending** pending);

/* Wait for a run, free its handle, and return what tvm_edge_run would. */
TVM_EDGE_API tvm_edge_status tvm_edge_wait(tvm_edge_pending* pending);

/* Pay the costs of a first run now: programs, threads, memory pools, page faults of the weights. */
TVM_EDGE_API tvm_edge_status tvm_edge_warmup(tvm_edge_model* model,
                                             const tvm_edge_run_options* options);

/* ------------------------------------------------------------------------ streams of frames */

/*
 * Begin to run a model on one frame after the other.
 *
 * Frames are pushed and their results popped, in the same order; up to depth frames are on their
 * way. The devices of a model that has several work on different frames meanwhile. A model may have
 * several streams, and lives as long as one of them.
 */
TVM_EDGE_API tvm_edge_status tvm_edge_stream_begin(tvm_edge_model* model, size_t depth,
                                                   tvm_edge_stream** stream);

/*
 * Send a frame on its way; inputs as of tvm_edge_run, which are copied if they are in host memory.
 * Refused while depth frames are on their way.
 */
TVM_EDGE_API tvm_edge_status tvm_edge_stream_push(tvm_edge_stream* stream,
                                                  const tvm_edge_tensor* inputs,
                                                  size_t num_inputs);

/*
 * Wait for the oldest frame and take its results, outputs as of tvm_edge_run. A frame that failed
 * is over then, and those after it go on.
 */
TVM_EDGE_API tvm_edge_status tvm_edge_stream_pop(tvm_edge_stream* stream, tvm_edge_tensor* outputs,
                                                 size_t num_outputs);

/* How many frames are on their way, or wait to be popped. */
TVM_EDGE_API tvm_edge_status tvm_edge_stream_pending(tvm_edge_stream* stream, size_t* count);

/* Forget frames that were not popped, and end the stream's threads. */
TVM_EDGE_API tvm_edge_status tvm_edge_stream_end(tvm_edge_stream* stream);

/* ---------------------------------------------------------------------- memory from outside */

/*
 * Let a model for OpenCL read and write memory of somebody else's where it is.
 *
 * Fills in data, nbytes and the device of a tensor, which is then an input or an output of any run:
 * the caller sets its name, type and shape. Whoever writes there has ended before a run begins.
 * Refused, with a message, where the driver cannot. Host memory begins on 64 bytes, and the device
 * is the CPU.
 */
TVM_EDGE_API tvm_edge_status tvm_edge_import(tvm_edge_model* model, const tvm_edge_memory* memory,
                                             tvm_edge_tensor* tensor, tvm_edge_buffer** buffer);

/* Give memory back that was imported, after the last run with it has returned. */
TVM_EDGE_API tvm_edge_status tvm_edge_free_buffer(tvm_edge_buffer* buffer);

/* The cl_context and the cl_device_id that a model for OpenCL runs on. */
TVM_EDGE_API tvm_edge_status tvm_edge_opencl_context(tvm_edge_model* model, void** context,
                                                     void** device);

#ifdef __cplusplus
}  /* extern "C" */
#endif

#endif  /* TVM_EDGE_TVM_EDGE_H_ */
