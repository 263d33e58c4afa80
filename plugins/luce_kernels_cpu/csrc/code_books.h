// The code books of the IQ1, IQ2 and IQ3 types: given at run time, since the file format's own
// package ships them.
#ifndef LUCE_CODE_BOOKS_H
#define LUCE_CODE_BOOKS_H

#include <cstdint>

namespace lk {

// Entries of 8 signed values (4 for IQ3), one after the other; NULL until lk_set_code_book.
const int8_t* code_book(int32_t type);

}  // namespace lk

#endif
