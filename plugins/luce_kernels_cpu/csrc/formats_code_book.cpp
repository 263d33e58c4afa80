// IQ1, IQ2, IQ3: 256 values whose groups of 8 (4 for IQ3) are entries of a code book. Entries of
// IQ2 and IQ3 are magnitudes, signs are stored beside them; those of IQ1 are -1, 0 or 1, moved by
// an eighth up or down.
#include <atomic>
#include <cstring>
#include <new>

#include "code_books.h"
#include "error.h"
#include "formats.h"
#include "half.h"

namespace lk {
namespace {

struct Book {
    int32_t type;
    int64_t bytes;
    std::atomic<const int8_t*> entries;
};

enum { IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ3_S = 21, IQ2_S = 22, IQ1_M = 29 };

Book books[] = {
    {IQ2_XXS, 256 * 8, nullptr}, {IQ2_XS, 512 * 8, nullptr}, {IQ2_S, 1024 * 8, nullptr},
    {IQ3_XXS, 256 * 4, nullptr}, {IQ3_S, 512 * 4, nullptr},  {IQ1_S, 2048 * 8, nullptr},
    {IQ1_M, 2048 * 8, nullptr},
};

// step * entry * sign of `count` values; bit j of `signs` makes value j negative.
inline void put_signed(const int8_t* entry, int count, uint32_t signs, float step, float* values) {
    constexpr float SIGN[2] = {1.0f, -1.0f};
    for (int j = 0; j < count; ++j) values[j] = step * float(entry[j]) * SIGN[(signs >> j) & 1];
}

// Seven sign bits; the eighth makes the number of set bits even.
uint32_t even_signs(uint32_t code) {
    return code | (uint32_t(__builtin_parity(code)) << 7);
}

float nibble(const uint8_t* field, int i) { return float((field[i / 2] >> (4 * (i % 2))) & 15); }

// d[2], then per 32 values: codes[4], and a word of 4 x 7 sign bits and a 4-bit scale.
void iq2_xxs(const uint8_t* block, float* values) {
    const int8_t* book = code_book(IQ2_XXS);
    const float d = load_half(block);
    for (int group = 0; group < 8; ++group) {
        const uint8_t* codes = block + 2 + 8 * group;
        const uint32_t word = load_u32(codes + 4);
        const float step = d * (0.5f + float(word >> 28)) * 0.25f;
        for (int i = 0; i < 4; ++i) {
            put_signed(book + 8 * codes[i], 8, even_signs((word >> (7 * i)) & 0x7F), step,
                       values + 32 * group + 8 * i);
        }
    }
}

// d[2] words[64] scales[8]; a 16-bit word: 9 bits of code, 7 sign bits; a scale per 16 values.
void iq2_xs(const uint8_t* block, float* values) {
    const int8_t* book = code_book(IQ2_XS);
    const float d = load_half(block);
    for (int i = 0; i < 32; ++i) {
        const uint32_t word = load_u16(block + 2 + 2 * i);
        const float step = d * (0.5f + nibble(block + 66, i / 2)) * 0.25f;
        put_signed(book + 8 * (word & 0x1FF), 8, even_signs(word >> 9), step, values + 8 * i);
    }
}

// d[2] qs[32] signs[32] qh[8] scales[8]; 10-bit codes, one sign bit a value.
void iq2_s(const uint8_t* block, float* values) {
    const int8_t* book = code_book(IQ2_S);
    const float d = load_half(block);
    for (int i = 0; i < 32; ++i) {
        const uint32_t high = (block[66 + i / 4] >> (2 * (i % 4))) & 3;
        const float step = d * (0.5f + nibble(block + 74, i / 2)) * 0.25f;
        put_signed(book + 8 * (block[2 + i] | (high << 8)), 8, block[34 + i], step, values + 8 * i);
    }
}

// d[2] qs[64] words[32]; a word per 32 values: 4 x 7 sign bits and a 4-bit scale.
void iq3_xxs(const uint8_t* block, float* values) {
    const int8_t* book = code_book(IQ3_XXS);
    const float d = load_half(block);
    for (int i = 0; i < 32; ++i) {
        const uint32_t word = load_u32(block + 66 + 4 * (i / 4));
        const float step = d * (0.5f + float(word >> 28)) * 0.5f;
        const uint32_t signs = even_signs((word >> (7 * (i % 4))) & 0x7F);
        const uint8_t* codes = block + 2 + 2 * i;
        put_signed(book + 4 * codes[0], 4, signs, step, values + 8 * i);
        put_signed(book + 4 * codes[1], 4, signs >> 4, step, values + 8 * i + 4);
    }
}

// d[2] qs[64] qh[8] signs[32] scales[4]; 9-bit codes; value = d (1 + 2 s) * entry * sign.
void iq3_s(const uint8_t* block, float* values) {
    const int8_t* book = code_book(IQ3_S);
    const float d = load_half(block);
    for (int i = 0; i < 64; ++i) {
        const uint32_t high = (block[66 + i / 8] >> (i % 8)) & 1;
        const float step = d * (1 + 2 * nibble(block + 106, i / 8));
        put_signed(book + 4 * (block[2 + i] | (high << 8)), 4, block[74 + i / 2] >> (4 * (i % 2)),
                   step, values + 4 * i);
    }
}

void put_moved(const int8_t* entry, bool down, float step, float* values) {
    const float delta = down ? -0.125f : 0.125f;
    for (int j = 0; j < 8; ++j) values[j] = step * (float(entry[j]) + delta);
}

// d[2] qs[32] qh[16]; a 16-bit word of qh per 32 values: 4 x 3 code bits, a 3-bit scale s, delta's
// sign; value = d (2 s + 1) (entry + delta).
void iq1_s(const uint8_t* block, float* values) {
    const int8_t* book = code_book(IQ1_S);
    const float d = load_half(block);
    for (int i = 0; i < 32; ++i) {
        const uint32_t word = load_u16(block + 34 + 2 * (i / 4));
        const float step = d * float(2 * ((word >> 12) & 7) + 1);
        const uint32_t code = block[2 + i] | (((word >> (3 * (i % 4))) & 7) << 8);
        put_moved(book + 8 * code, word & 0x8000, step, values + 8 * i);
    }
}

// qs[32] qh[16] scales[8]; qh holds 3 code bits and delta's sign for each 8 values. A 16-bit word
// of scales holds 4 x 3 bits, one per 16 values; the top nibbles of the four words are d.
void iq1_m(const uint8_t* block, float* values) {
    const int8_t* book = code_book(IQ1_M);
    uint32_t d_bits = 0;
    for (int i = 0; i < 4; ++i) d_bits |= uint32_t(load_u16(block + 48 + 2 * i) >> 12) << (4 * i);
    const float d = half_to_float(uint16_t(d_bits));
    for (int i = 0; i < 32; ++i) {
        const int group = i / 2;
        const uint32_t s = (load_u16(block + 48 + 2 * (group / 4)) >> (3 * (group % 4))) & 7;
        const uint32_t high = (block[32 + i / 2] >> (4 * (i % 2))) & 15;
        put_moved(book + 8 * (block[i] | ((high & 7) << 8)), high & 8, d * float(2 * s + 1),
                  values + 8 * i);
    }
}

constexpr Format of(int32_t type, const char* name, int32_t bytes,
                    void (*decode)(const uint8_t*, float*)) {
    return {type,    name,  256,    bytes, Layout::BLOCKS, nullptr, nullptr, nullptr, Planes::BYTES,
            0,       0,     nullptr, false, decode, true};
}

constexpr Format FORMATS[] = {
    of(IQ2_XXS, "iq2_xxs", 66, iq2_xxs), of(IQ2_XS, "iq2_xs", 74, iq2_xs),
    of(IQ2_S, "iq2_s", 82, iq2_s),       of(IQ3_XXS, "iq3_xxs", 98, iq3_xxs),
    of(IQ3_S, "iq3_s", 110, iq3_s),      of(IQ1_S, "iq1_s", 50, iq1_s),
    of(IQ1_M, "iq1_m", 56, iq1_m),
};

Book* find_book(int32_t type) {
    for (Book& book : books) {
        if (book.type == type) return &book;
    }
    return nullptr;
}

}  // namespace

const int8_t* code_book(int32_t type) {
    const Book* book = find_book(type);
    return book == nullptr ? nullptr : book->entries.load(std::memory_order_acquire);
}

const Format* find_code_book_format(int32_t type) {
    for (const Format& format : FORMATS) {
        if (format.type == type) return &format;
    }
    return nullptr;
}

}  // namespace lk

extern "C" LK_API int32_t lk_set_code_book(int32_t type, const int8_t* entries, int64_t bytes) {
    lk::Book* book = lk::find_book(type);
    if (book == nullptr) return lk_fail("type %d has no code book", type);
    if (bytes != book->bytes) {
        return lk_fail("the code book of type %d has %lld bytes, got %lld", type,
                       static_cast<long long>(book->bytes), static_cast<long long>(bytes));
    }
    if (book->entries.load() != nullptr) return 0;  // weights that read it may exist
    auto* copy = new (std::nothrow) int8_t[size_t(bytes)];
    if (copy == nullptr) return lk_fail("no memory for a code book of %lld bytes",
                                        static_cast<long long>(bytes));
    std::memcpy(copy, entries, size_t(bytes));
    const int8_t* none = nullptr;
    if (!book->entries.compare_exchange_strong(none, copy)) delete[] copy;
    return 0;
}
