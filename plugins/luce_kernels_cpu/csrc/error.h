// The message behind a failed call, one per thread.
#ifndef LUCE_ERROR_H
#define LUCE_ERROR_H

// Keeps a printf-style message for lk_last_error and returns -1, so that a check can
// `return lk_fail(...)`. Longer messages are cut.
__attribute__((format(printf, 1, 2))) int lk_fail(const char* format, ...);

#endif
