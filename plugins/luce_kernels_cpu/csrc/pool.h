// Runs one function on all workers at once. Used by the tape and by weight packing.
#ifndef LUCE_POOL_H
#define LUCE_POOL_H

#include "luce_kernels.h"

typedef void (*lk_region)(void* context, lk_worker* worker);

// Calls region(context, worker) once per worker and returns when all have returned. The calling
// thread is worker 0; calls from several threads run one after the other. 0, or -1 in a process
// that was forked after the pool was made: its threads are not there.
int lk_pool_run(lk_pool* pool, lk_region region, void* context);

// A region follows in a moment: workers that sleep are woken, and spin for it somewhat longer than
// between regions. Any thread, at any time.
extern "C" LK_API void lk_pool_rouse(lk_pool* pool);

#endif
