/*!
 * \file page_guard.h
 * \brief Files that are mapped for kernels to read, and that somebody cuts meanwhile.
 */
#ifndef TVM_EDGE_OPENCL_PAGE_GUARD_H_
#define TVM_EDGE_OPENCL_PAGE_GUARD_H_

#include <cstddef>

extern "C" {

/*!
 * \brief Let reads of pages that the file has no longer find zeros, where they would be SIGBUS.
 *
 * It takes over SIGBUS; what is not for a guarded page goes to whoever had it before.
 * \return What the two others take; null when there is no memory for it.
 */
__attribute__((visibility("default"))) void* TvmEdgeGuardPages(void* address, size_t nbytes);

/*!
 * \brief Whether something was read that the file has no longer. From then on it is zeros.
 *
 * Takes over SIGBUS again, if somebody else has it by now.
 */
__attribute__((visibility("default"))) int TvmEdgePagesLost(void* guard);

/*! \brief To be called before the file is unmapped. */
__attribute__((visibility("default"))) void TvmEdgeReleasePages(void* guard);
}

#endif  // TVM_EDGE_OPENCL_PAGE_GUARD_H_
