/* A driver that takes launches and forgets them: what is left is the runtime's own time. All other
 * calls go to the real library, which this one is linked with. */
#include <stddef.h>

int clEnqueueNDRangeKernel(void *queue, void *kernel, unsigned dimensions, const size_t *offset,
                           const size_t *global, const size_t *local, unsigned waits,
                           const void *wait_list, void **event) {
  (void)queue, (void)kernel, (void)dimensions, (void)offset, (void)global, (void)local;
  (void)waits, (void)wait_list;
  return event == NULL ? 0 : -5; /* nobody must wait for what never happens */
}
