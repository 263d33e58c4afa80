// Rows of packed matrices as floats.
#ifndef LUCE_TABLE_ROW_H
#define LUCE_TABLE_ROW_H

#include "luce_kernels.h"

namespace lk {

// The k values of row 0 .. n-1, exactly as the file's blocks mean them.
void table_row(const lk_weight& weight, int64_t row, float* out);

}  // namespace lk

#endif
